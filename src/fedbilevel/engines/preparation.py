"""What comes before the first exchange: checks, types, costs, first state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import one_device
from fedbilevel.engines.checks import (
    check_participation,
    check_problem,
    check_rounds,
    check_run,
    check_variable,
    check_weights,
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
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class RunSpec(NamedTuple):
    """All that a run is asked to do, as one value to hand on.

    Attributes:
        problem: the two losses.
        algorithm: what devices and server do in a round.
        devices: the data.
        x: where the upper variable starts.
        y: where the lower variable starts.
        rounds: how many there are.
        seed: of every random choice.
        participation: who takes part in a round.
        weights: of the devices in every mean; all alike by default.
        engine: where the devices' work is done.
        limits: that uploads are held to.

    Example:
        >>> RunSpec._fields[:5]
        ('problem', 'algorithm', 'devices', 'x', 'y')
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    x: Upper
    y: Lower
    rounds: int = 1
    seed: int = 0
    participation: Participation = FullParticipation()
    weights: ArrayLike | None = None
    engine: Engine = Simulation()
    limits: Limits = NO_LIMITS


class Prepared(NamedTuple):
    """A run that has not begun.

    Attributes:
        spec: what was asked.
        job: what stays the same throughout.
        state: what the first exchange begins with.
        weights: of all enrolled devices.

    Example:
        >>> Prepared._fields
        ('spec', 'job', 'state', 'weights')
    """

    spec: RunSpec
    job: Job
    state: RunState
    weights: Float[np.ndarray, "devices"]


def prepare(spec: RunSpec) -> Prepared:
    """Check that what a run is asked fits together, and make its job and first state.

    Of the data it looks at one device's, which an engine may have to choose.

    Raises:
        ValueError: if it does not.

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
    problem, algorithm, devices = spec.problem, spec.algorithm, spec.devices
    check_algorithm(algorithm)
    if isinstance(devices, type) or not isinstance(devices, Devices):
        raise TypeError(
            f"a {type(devices).__name__} was given for devices; wrap what each device "
            "holds in InMemoryDevices or OnDemandDevices."
        )
    check_rounds(spec.rounds)
    check_run(spec.seed, spec.engine, spec.limits)
    check_participation(spec.participation)
    check_variable("x", spec.x)
    check_variable("y", spec.y)
    x, y = canonical(spec.x), canonical(spec.y)
    count = devices.device_count
    enrolled = check_weights(spec.weights, count)
    looked_at = np.array([spec.engine.example_device(count)])
    one = one_device(devices.cohort(looked_at))
    check_problem(problem, x, y, one)
    check_means(problem, x, y, one)
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
            reference.of(algorithm, problem), server, private, one, key
        )
        for reference in dict.fromkeys((*opening, *phases))
    }
    usual = len(spec.participation(spec.seed, 0, count))
    arrays = () if devices.in_memory else (one.upper.arrays, one.lower.arrays)
    job = Job(
        problem=problem,
        algorithm=algorithm,
        devices=devices,
        form=jax.eval_shape(lambda: one),
        key=key,
        opening=opening,
        phases=phases,
        cohort_size=usual,
        loaded_bytes=tree.number_of_bytes(arrays),
        limits=spec.limits,
        costs=costs,
    )
    state = RunState(server, spec.engine.private_states(private, count))
    return Prepared(spec, job, state, enrolled)


def configuration_of(prepared: Prepared) -> dict[str, Any]:
    """Return all that decides a run's numbers, for comparison with another run.

    Examples in memory are compared by a digest, those that are loaded by their form.

    Example:
        >>> configuration_of.__name__
        'configuration_of'
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
    """Return a round's chosen devices with their shares of the weight.

    Example:
        >>> import numpy as np
        >>> participants_of(0, np.array([0, 2]), np.array([1.0, 5.0, 3.0])).weights
        array([0.25, 0.75])
    """
    if not len(chosen):
        raise ValueError(
            f"no device was chosen for round {number}; let participation return at "
            "least one."
        )
    if not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(
            f"participation returned {chosen.dtype} for round {number}; let it return "
            "the numbers of devices, which are whole."
        )
    wrong = chosen[(chosen < 0) | (chosen >= len(weights))]
    if len(wrong):
        raise ValueError(
            f"device {wrong[0]} was chosen for round {number}, but devices are "
            f"numbered 0 to {len(weights) - 1}."
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError(
            f"a device was chosen twice for round {number}; let participation return "
            "each device at most once."
        )
    total = weights[chosen].sum()
    if not total:
        raise ValueError(
            f"no device with a weight above zero takes part in round {number}; choose "
            "more devices a round or give more of them a weight."
        )
    return Participants(chosen, weights[chosen] / total)


def references(opening: bool, phases: tuple[Phase, ...]) -> tuple[PhaseReference, ...]:
    """Return references to phases: a repeated one refers to its first place.

    So it is compiled once. Phases are known by their names, whoever has wrapped them.

    Raises:
        ValueError: if two phases that differ have the same name.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: (y - x) ** 2
        >>> phases = WarmStart(0.1, exchanges=3).phases(BilevelProblem(loss, loss))
        >>> [reference.index for reference in references(True, phases)]
        [0, 0, 0]
    """
    places: dict[str, int] = {}
    for place, phase in enumerate(phases):
        first = phases[places.setdefault(phase.name, place)]
        if _origin(first) != _origin(phase):
            raise ValueError(
                f"two different phases of a round are called {phase.name!r}; only one "
                "that is repeated may have its name twice."
            )
    return tuple(PhaseReference(opening, places[phase.name]) for phase in phases)


def _origin(phase: Phase) -> tuple[Any, ...]:
    """Return where the functions of a phase are written, and its number of steps."""
    # What wraps a phase makes new functions each time, but from the same lines.
    functions = (getattr(part, "func", part) for part in phase if callable(part))
    names = [(one.__module__, one.__qualname__) for one in functions]
    return phase.steps, *names


def canonical(state: PyTree) -> PyTree:
    """Return the state with strongly typed leaves.

    Example:
        >>> canonical(1.0).weak_type
        False
    """
    # A weakly typed leaf would come back strongly typed and compile everything again.
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.result_type(leaf)), state)
