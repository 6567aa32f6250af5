"""A run: its arguments as one value, its checks, and the iterator of its rounds."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from fedbilevel.algorithms.optional import PlannedRounds
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import one_device
from fedbilevel.data.weights import (
    DevicesWithTerms,
    Weighting,
    factors_of,
    have_one_level,
    with_levels,
)
from fedbilevel.engines.checkpoints.options import (
    CheckpointError,
    Checkpoints,
    Progress,
)
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.checks import (
    check_every,
    check_participation,
    check_problem,
    check_rounds,
    check_run,
    check_variable,
    require_comparable,
    require_fitting,
)
from fedbilevel.engines.costs import Costs, device_costs
from fedbilevel.engines.fingerprint import describe, describe_arrays
from fedbilevel.engines.inspection import logger
from fedbilevel.engines.iteration import (
    affordable_rounds,
    counts_of,
    iterate,
    repeated_means,
)
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.loss_checks import check_means
from fedbilevel.engines.noise_secret import with_noise_secret
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.phase_checks import (
    check_algorithm,
    check_first_state,
    check_phases,
)
from fedbilevel.engines.preparation import Prepared, canonical, references
from fedbilevel.engines.protocol import Engine, Job, RunState
from fedbilevel.engines.round import Round
from fedbilevel.engines.simulation import Simulation
from fedbilevel.engines.spending import spending_of
from fedbilevel.engines.whole_shares import check_sums
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import has_tensors, on_host
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import count_noun
from fedbilevel.transforms.rules import LEVELS, ONE_LEVEL, check_rules
from fedbilevel.transforms.transformed import transforms_of


@dataclass(frozen=True, eq=False)
class Run:
    """A run as a value: the arguments of `run`, which has their details.

    Iterate over it to run it: `for result in Run(...)` yields each finished round, as
    `start` does with options. Other functions take it as an argument, such as `tune`
    and `predict_costs`. `dataclasses.replace(run, seed=1)` returns another run.

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

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, Checkpoints, FedBiO, InMemoryDevices, LocalExamples, Run
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> run = Run(
        ...     BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0, rounds=4
        ... )
        >>> [result.number for result in run]
        [0, 1, 2, 3]
        >>> checkpoints = Checkpoints(
        ...     tempfile.mkdtemp(),
        ...     measure=lambda result: {"distance": abs(result.number - 2)},
        ...     every=1,
        ...     best="distance",
        ... )
        >>> next(run.start(checkpoints)).number  # and stop
        0
        >>> [result.number for result in run.resume(checkpoints)]
        [1, 2, 3]
        >>> run.best_round(checkpoints).number
        2
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    x: Upper
    y: Lower
    _: KW_ONLY
    rounds: int
    seed: int = 0
    participation: Participation = FullParticipation()
    weights: Weighting = None
    engine: Engine = Simulation()
    limits: Limits = NO_LIMITS

    def __iter__(self) -> Generator[Round, None, None]:
        """Run, and yield each finished round."""
        return self.start()

    def start(
        self,
        checkpoints: Checkpoints | None = None,
        every: int = 1,
        *,
        progress: bool = False,
    ) -> Generator[Round, None, None]:
        """Run, and yield each finished round.

        Args:
            checkpoints: directory and schedule of the checkpoints; none by default.
            every: yield every n-th round; the last round is always yielded.
            progress: also yield the first round and, about twice a second, a round
                between every n-th, to show progress or to stop.

        Returns:
            An iterator of rounds.

        Raises:
            CheckpointError: if there are checkpoints already: `resume` continues.
            NoUploadsError: while iterating, if all devices of an exchange were
                excluded.
            ValueError: if an argument is invalid, or arguments do not fit together.
        """
        prepared, store = self._prepared(checkpoints, every)
        if store is not None and store.rounds:
            raise CheckpointError(
                f"{store.directory} already has a checkpoint of "
                f"{count_noun(store.rounds[-1], 'round')}. Call resume to continue "
                "from it, or choose another directory."
            )
        _warn_other_length(self.algorithm, self.rounds)
        prepared = with_noise_secret(prepared, store)
        first = Progress(0, prepared.state, Costs(), ())
        rounds = iterate(prepared, first, store, every)
        return rounds if progress else _selected(rounds, every)

    def resume(
        self, checkpoints: Checkpoints, every: int = 1, *, progress: bool = False
    ) -> Generator[Round, None, None]:
        """Resume from the newest checkpoint, and yield each remaining round.

        The result is equal to that of an uninterrupted run, bit by bit. A damaged
        checkpoint is skipped in favour of the one before it; without a checkpoint the
        run starts at round 0. Engine, `rounds` and `every` may differ from those of the
        start. If the run is complete, its last round is yielded again.

        Args:
            checkpoints: the checkpoints of the run.
            every: yield every n-th round, counted from the first round of the run. The
                last bit may differ between `every=1` and larger values.
            progress: also yield rounds between every n-th, as `start` does.

        Returns:
            An iterator of the remaining rounds.

        Raises:
            CheckpointError: if the checkpoint belongs to a run with other arguments;
                the message names them.
        """
        prepared, store = self._prepared(checkpoints, every)
        assert store is not None, "_prepared returns a store for checkpoints"
        newest = store.newest(prepared.state)
        if newest is None:
            newest = Progress(0, prepared.state, Costs(), ())
        if newest.rounds > self.rounds:
            raise ValueError(
                f"rounds is {self.rounds}, but {store.directory} has a checkpoint of "
                f"{count_noun(newest.rounds, 'round')}. Set rounds to at least "
                f"{newest.rounds}."
            )
        repeated = repeated_means(prepared, newest.rounds)
        if newest.rounds >= affordable_rounds(prepared, repeated):
            last = _saved_round(newest, prepared)._replace(is_last=True)
            return (each for each in [last])
        prepared = with_noise_secret(prepared, store, resumed=newest)
        rounds = iterate(prepared, newest, store, every)
        return rounds if progress else _selected(rounds, every)

    def best_round(self, checkpoints: Checkpoints) -> Round:
        """Return the round of the checkpoint with the smallest value of `best`.

        Args:
            checkpoints: the checkpoints of the run, with `best`.

        Raises:
            CheckpointError: if there is no such checkpoint, or it belongs to another
                run.
        """
        prepared, store = self._prepared(checkpoints)
        assert store is not None, "_prepared returns a store for checkpoints"
        best = store.best(prepared.state)
        if best is None:
            raise CheckpointError(
                f"{store.directory} has no checkpoint with a metric to compare. Run "
                "with Checkpoints(..., measure=..., best=...)."
            )
        return _saved_round(best, prepared)

    def _prepared(
        self, checkpoints: Checkpoints | None, every: int = 1
    ) -> tuple[Prepared, Store | None]:
        check_every(every)
        if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
            raise TypeError(
                f"checkpoints is {checkpoints!r}. Pass Checkpoints({checkpoints!r})."
            )
        prepared = prepare(self)
        if checkpoints is None:
            return prepared, None
        return prepared, Store(checkpoints, configuration_of(self, prepared))


def run(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation = FullParticipation(),
    weights: Weighting = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
    checkpoints: Checkpoints | None = None,
    every: int = 1,
) -> Generator[Round, None, None]:
    """Run an algorithm and yield each finished round.

    It starts a `Run`, which can also be resumed.

    Args:
        problem: the two losses.
        algorithm: algorithm with its hyperparameters.
        devices: data of all devices.
        x: initial upper variable.
        y: initial lower variable.
        rounds: number of rounds.
        seed: seed of every random choice of the run; the same seed gives the same bits.
            A run that reports an ε draws from a secret in its place.
        participation: function that selects the devices of each round.
        weights: weights of the devices in every mean, in any unit; equal by default, as
            in the paper. A device of weight zero is absent. With sampled devices,
            weights are renormalised within the sample, so the estimate of the weighted
            mean over all devices is biased.
        engine: engine that executes the devices' work.
        limits: limits on the norm and the distance of uploads. An upload that exceeds
            them, or is not finite, is excluded from the mean as if its device were
            absent, and a warning names the device. By default any finite upload is
            accepted.
        checkpoints: directory and schedule of the checkpoints for `Run.resume`;
            none by default.
        every: yield every n-th round; the last round is always yielded. `Simulation`
            runs the rounds in between in one compiled call, which saves Python
            overhead if a round takes milliseconds. Costs, exclusions, warnings and
            checkpoints do not depend on `every`. Results are equal for all `every`
            above 1; those of 1 may differ in the last bit, because another program is
            compiled.

    Returns:
        An iterator of rounds.

    Raises:
        ValueError: if an argument is invalid, or arguments do not fit together.
        NoUploadsError: while iterating, if all devices of an exchange were excluded.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, InMemoryDevices, LocalBSGM, LocalExamples,
        ...     NeumannSeries, run,
        ... )
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = LocalBSGM(
        ...     learning_rate=0.1,
        ...     upper_mixing=10.0,
        ...     lower_mixing=10.0,
        ...     hypergradient=NeumannSeries(terms=10, scale=0.4),
        ...     local_steps=5,
        ... )
        >>> *_, last = run(problem, algorithm, devices, 3.0, 0.0, rounds=40)
        >>> round(float(last.x), 3)  # Φ(x) = (x − 1)²
        1.0
    """
    return Run(
        problem,
        algorithm,
        devices,
        x,
        y,
        rounds=rounds,
        seed=seed,
        participation=participation,
        weights=weights,
        engine=engine,
        limits=limits,
    ).start(checkpoints, every)


@runtime_checkable
class PreparingEngine(Protocol):
    """An engine that prepares its runs: one whose arrays are not those of JAX."""

    def prepare(self, run: Run) -> Prepared:
        """Check the arguments of a run, and return its job and first state."""


def prepare(run: Run) -> Prepared:
    """Check the arguments of a run, and return its job and first state.

    Raises:
        ValueError: if an argument is invalid, or arguments do not fit together.
    """
    if isinstance(run.engine, PreparingEngine):
        return run.engine.prepare(run)
    return prepare_arrays(run)


def prepare_arrays(run: Run) -> Prepared:
    """Check the arguments of a run of JAX, and return its job and first state.

    It reads the data of one device, which the engine selects.

    Raises:
        TypeError: if the arrays of the engine are not those of JAX.
        ValueError: if an argument is invalid, or arguments do not fit together.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> inputs = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> prepare_arrays(Run(*inputs, rounds=1)).job.cohort_size
        4
    """
    if isinstance(run.engine, PreparingEngine):
        raise TypeError(
            f"{type(run.engine).__name__} runs algorithms only; this measures the "
            "losses with JAX. Omit engine, and pass the examples as arrays of NumPy in "
            "InMemoryDevices."
        )
    problem, algorithm, devices = run.problem, run.algorithm, run.devices
    check_algorithm(algorithm)
    _check_devices(devices)
    check_arguments(run)
    x, y = canonical(run.x), canonical(run.y)
    count = devices.device_count
    require_fitting(algorithm, devices, run.weights)
    usual = len(run.participation(run.seed, 0, count))
    devices, enrolled = with_levels(devices, run.weights, x, usual)
    sample = np.array([run.engine.example_device(count)])
    stored = devices.cohort(sample)
    if has_tensors(stored):
        raise TypeError(
            f"devices has tensors, which {type(run.engine).__name__} does not read. "
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
    key = jax.random.key(run.seed)
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
        limits=run.limits,
        costs=costs,
    )
    state = RunState(server, run.engine.private_states(private, count))
    check_rules([*run.limits.names, *_level_names(devices), *transforms_of(algorithm)])
    require_comparable((*opens, *every), devices)
    check_sums(algorithm, enrolled, usual)
    spending = spending_of(
        job,
        run.participation,
        run.engine,
        enrolled,
        RunState(server, private),
        data,
    )
    return Prepared(
        job,
        state,
        enrolled,
        run.engine,
        run.rounds,
        run.participation,
        run.seed,
        spending,
    )


def check_arguments(run: Run) -> None:
    """Raise an error if an argument is invalid that needs no other to be checked."""
    check_rounds(run.rounds)
    check_run(run.seed, run.engine, run.limits)
    check_participation(run.participation)
    check_variable("x", jax.tree.map(on_host, run.x))
    check_variable("y", jax.tree.map(on_host, run.y))


def _level_names(devices: Devices) -> list[tuple[str, str]]:
    """Return the places that factors of losses have in the rules, with their names."""
    factors = factors_of(devices)
    names = [] if factors is None else [LEVELS]
    return [*names, ONE_LEVEL] if have_one_level(factors) else names


def _check_devices(devices: Any) -> None:
    if isinstance(devices, type) or not isinstance(devices, Devices):
        raise TypeError(
            f"devices is of type {type(devices).__name__}. Wrap the data of the "
            "devices in InMemoryDevices or OnDemandDevices."
        )


def configuration_of(run: Run, prepared: Prepared) -> dict[str, Any]:
    """Return all settings that determine the numbers of a run, to compare two runs.

    Examples in memory are represented by a digest, loaded examples by their form.
    """
    job = prepared.job
    equal = bool(np.all(prepared.weights == prepared.weights[0]))
    return {
        "problem": describe(job.problem),
        "algorithm": describe(job.algorithm),
        "devices": job.devices.device_count,
        "data": _describe_data(job),
        "x": describe_arrays(run.x),
        "y": describe_arrays(run.y),
        "seed": int(run.seed),
        "participation": describe(run.participation),
        "weights": "equal" if equal else describe(prepared.weights),
        "factors": _describe_factors(job),
        "norm_limit": _number(job.limits.norm),
        "distance_limit": _number(job.limits.distance),
        "double_precision": bool(jax.config.read("jax_enable_x64")),
    }


def _number(limit: tree.Scalar | None) -> float | None:
    return None if limit is None else float(limit)


def _describe_factors(job: Job) -> Any:
    if not isinstance(job.devices, DevicesWithTerms):
        return "none"
    return {
        "upper": describe(job.devices.upper),
        "lower": describe(job.devices.lower),
    }


def _describe_data(job: Job) -> Any:
    if job.devices.in_memory:
        return describe_arrays(job.devices.cohort(np.arange(job.devices.device_count)))
    forms = jax.tree_util.tree_leaves_with_path(job.form)
    return {jax.tree_util.keystr(path): tree.form(leaf) for path, leaf in forms}


def _saved_round(progress: Progress, prepared: Prepared) -> Round:
    return Round(
        progress.rounds - 1,
        progress.state,
        (),
        progress.costs,
        progress.history,
        counts_of(progress, len(prepared.weights)).snapshot(),
        prepared.spending,
        repeated_means(prepared, progress.rounds),
    )


def _selected(
    rounds: Generator[Round, None, None], every: int
) -> Generator[Round, None, None]:
    """Yield every n-th round and the last."""
    with closing(rounds):
        for result in rounds:
            if (result.number + 1) % every == 0 or result.is_last:
                yield result


def _warn_other_length(algorithm: FederatedAlgorithm, rounds: int) -> None:
    planner = find_layer(algorithm, PlannedRounds)
    if planner is not None and planner.planned_rounds != rounds:
        logger.warning(
            "%s decays its learning rates over rounds=%s, but the run has rounds=%d, "
            "so %s. Pass the same number of rounds to both.",
            type(planner).__name__,
            planner.planned_rounds,
            rounds,
            "the run ends while the learning rate of x is still high"
            if planner.planned_rounds > rounds
            else "the learning rate of x is zero in the last rounds",
        )
