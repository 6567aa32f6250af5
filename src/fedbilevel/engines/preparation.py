"""Preparation of a run: checks, dtypes, costs and the first state."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import one_device
from fedbilevel.data.weights import Weighting, with_levels
from fedbilevel.engines.checks import (
    check_participation,
    check_problem,
    check_rounds,
    check_run,
    check_variable,
)
from fedbilevel.engines.costs import device_costs
from fedbilevel.engines.fingerprint import describe, describe_arrays
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.loss_checks import check_means
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.phase_checks import (
    check_algorithm,
    check_first_state,
    check_phases,
)
from fedbilevel.engines.protocol import (
    Engine,
    Job,
    Participants,
    PhaseReference,
    RunState,
)
from fedbilevel.engines.simulation import Simulation
from fedbilevel.engines.spending import Spending, spending_of
from fedbilevel.engines.whole_shares import check_sums
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import has_tensors, on_host
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.transforms.rules import check_rules
from fedbilevel.transforms.transformed import transforms_of


class RunSpec(NamedTuple):
    """The arguments of `run` as one value.

    Attributes:
        problem: the two losses.
        algorithm: algorithm with its hyperparameters.
        devices: data of all devices.
        x: initial upper variable.
        y: initial lower variable.
        rounds: number of rounds.
        seed: seed of every random choice of a run without an ε.
        participation: function that selects the devices of each round.
        weights: weights of the devices in every mean; equal by default.
        engine: engine that executes the devices' work.
        limits: limits on uploads.
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    x: Upper
    y: Lower
    rounds: int = 1
    seed: int = 0
    participation: Participation = FullParticipation()
    weights: Weighting = None
    engine: Engine = Simulation()
    limits: Limits = NO_LIMITS


class Prepared(NamedTuple):
    """A run that has not started.

    Attributes:
        spec: arguments of the run.
        job: constant inputs of the engine.
        state: state before the first exchange.
        weights: weights of all devices.
        participation_seed: seed from which the participants of all rounds follow.
        spending: privacy that the run spends; None without noise.
    """

    spec: RunSpec
    job: Job
    state: RunState
    weights: Float[np.ndarray, "devices"]
    participation_seed: int
    spending: Spending | None = None


@runtime_checkable
class PreparingEngine(Protocol):
    """An engine that prepares its runs: one whose arrays are not those of JAX."""

    def prepare(self, spec: RunSpec) -> Prepared:
        """Check the arguments of a run, and return its job and first state."""


def prepare(spec: RunSpec) -> Prepared:
    """Check the arguments of a run, and return its job and first state.

    It reads the data of one device, which the engine selects.

    Raises:
        ValueError: if an argument is invalid, or arguments do not fit together.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> spec = RunSpec(BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0)
        >>> prepare(spec).job.cohort_size
        4
    """
    if isinstance(spec.engine, PreparingEngine):
        return spec.engine.prepare(spec)
    problem, algorithm, devices = spec.problem, spec.algorithm, spec.devices
    check_algorithm(algorithm)
    if isinstance(devices, type) or not isinstance(devices, Devices):
        raise TypeError(
            f"devices is of type {type(devices).__name__}. Wrap the data of the "
            "devices in InMemoryDevices or OnDemandDevices."
        )
    check_rounds(spec.rounds)
    check_run(spec.seed, spec.engine, spec.limits)
    check_participation(spec.participation)
    check_variable("x", jax.tree.map(on_host, spec.x))
    check_variable("y", jax.tree.map(on_host, spec.y))
    x, y = canonical(spec.x), canonical(spec.y)
    count = devices.device_count
    devices, enrolled = with_levels(devices, spec.weights, x)
    sample = np.array([spec.engine.example_device(count)])
    stored = devices.cohort(sample)
    if has_tensors(stored):
        raise TypeError(
            f"devices has tensors, which {type(spec.engine).__name__} does not read. "
            "Pass engine=fedbilevel.torch.TensorSimulation(), or the examples as "
            "arrays of NumPy in InMemoryDevices."
        )
    data = one_device(stored)
    if isinstance(problem, BilevelProblem):
        problem = problem.for_jax
    check_problem(problem, x, y, data)
    check_means(problem, x, y, data)
    problem = for_devices(problem)
    first = algorithm.init(problem, x, y)
    check_first_state(algorithm, first)
    server, private = canonical(first)
    key = jax.random.key(spec.seed)
    every, opens = algorithm.phases(problem), algorithm.opening(problem)
    check_phases(algorithm, "phases", every)
    check_phases(algorithm, "opening", opens)
    phases = references(False, every)
    opening = references(True, opens) or phases
    costs = {
        reference: device_costs(
            reference.of(algorithm, problem), server, private, data, key
        )
        for reference in dict.fromkeys((*opening, *phases))
    }
    usual = len(spec.participation(spec.seed, 0, count))
    arrays = () if devices.in_memory else (data.upper.arrays, data.lower.arrays)
    job = Job(
        problem=problem,
        algorithm=algorithm,
        devices=devices,
        form=jax.eval_shape(lambda: data),
        key=key,
        opening=opening,
        phases=phases,
        cohort_size=usual,
        loaded_bytes=tree.number_of_bytes(arrays),
        limits=spec.limits,
        costs=costs,
    )
    state = RunState(server, spec.engine.private_states(private, count))
    check_rules([*spec.limits.names, *transforms_of(algorithm)])
    check_sums(algorithm, enrolled, usual)
    spending = spending_of(
        job,
        spec.participation,
        spec.engine,
        enrolled,
        RunState(server, private),
        data,
    )
    return Prepared(spec, job, state, enrolled, spec.seed, spending)


def configuration_of(prepared: Prepared) -> dict[str, Any]:
    """Return all settings that determine the numbers of a run, to compare two runs.

    Examples in memory are represented by a digest, loaded examples by their form.
    """
    spec = prepared.spec
    job = prepared.job
    equal = bool(np.all(prepared.weights == prepared.weights[0]))
    return {
        "problem": describe(job.problem),
        "algorithm": describe(job.algorithm),
        "devices": job.devices.device_count,
        "data": _describe_data(job),
        "x": describe_arrays(spec.x),
        "y": describe_arrays(spec.y),
        "seed": int(spec.seed),
        "participation": describe(spec.participation),
        "weights": "equal" if equal else describe(prepared.weights),
        "norm_limit": _number(job.limits.norm),
        "distance_limit": _number(job.limits.distance),
        "double_precision": bool(jax.config.read("jax_enable_x64")),
    }


def _number(limit: tree.Scalar | None) -> float | None:
    return None if limit is None else float(limit)


def _describe_data(job: Job) -> Any:
    if job.devices.in_memory:
        return describe_arrays(job.devices.cohort(np.arange(job.devices.device_count)))
    forms = jax.tree_util.tree_leaves_with_path(job.form)
    return {jax.tree_util.keystr(path): tree.form(leaf) for path, leaf in forms}


def participants_of(
    number: int,
    chosen: Int[np.ndarray, "chosen"],
    weights: Float[np.ndarray, "devices"],
) -> Participants:
    """Return the selected devices of a round with their shares of the weight.

    Example:
        >>> import numpy as np
        >>> participants_of(0, np.array([0, 2]), np.array([1.0, 5.0, 3.0])).weights
        array([0.25, 0.75])
    """
    if not len(chosen):
        raise ValueError(
            f"participation returned no device for round {number}. Return at least "
            "one device number."
        )
    if not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(
            f"participation returned an array of {chosen.dtype} for round {number}. "
            "Return device numbers, which are integers."
        )
    wrong = chosen[(chosen < 0) | (chosen >= len(weights))]
    if len(wrong):
        raise ValueError(
            f"participation returned device {wrong[0]} for round {number}. Return "
            f"numbers from 0 to {len(weights) - 1}."
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError(
            f"participation returned a device twice for round {number}. Return each "
            "device at most once."
        )
    total = weights[chosen].sum()
    if not total:
        raise ValueError(
            f"All devices selected for round {number} have weight 0. Select more "
            "devices in each round, or set weights above 0 for more devices."
        )
    return Participants(chosen, weights[chosen] / total)


def references(opening: bool, phases: tuple[Phase, ...]) -> tuple[PhaseReference, ...]:
    """Return references to phases: a repeated phase refers to its first position.

    A repeated phase is one object, and is compiled once.

    Raises:
        ValueError: if two phases have the same name and are not one object.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: (y - x) ** 2
        >>> phases = WarmStart(0.1, exchanges=3).phases(BilevelProblem(loss, loss))
        >>> [reference.index for reference in references(True, phases)]
        [0, 0, 0]
    """
    first: dict[int, int] = {}
    names: dict[str, Phase] = {}
    for index, phase in enumerate(phases):
        first.setdefault(id(phase), index)
        # Two objects may differ in what their functions refer to, which is not visible.
        if names.setdefault(phase.name, phase) is not phase:
            raise ValueError(
                f"Two phases of a round have the name {phase.name!r}. Rename one of "
                "them if they differ. To repeat a phase, return one object several "
                "times, such as (phase,) * 3; a wrapper of phases keeps repetitions "
                "with map_phases of fedbilevel.algorithms."
            )
    return tuple(PhaseReference(opening, first[id(phase)]) for phase in phases)


def canonical(state: PyTree) -> PyTree:
    """Return the state with strongly typed leaves.

    Example:
        >>> canonical(1.0).weak_type
        False
    """

    # A weakly typed leaf becomes strongly typed after one call, which recompiles.
    def strong(leaf: Any) -> Array:
        leaf = on_host(leaf)
        return jnp.array(leaf, jnp.result_type(leaf))

    return jax.tree.map(strong, state)
