"""The functions `run`, `resume` and `best_round`, the same for every engine."""

from collections.abc import Generator
from contextlib import closing

from fedbilevel.algorithms.optional import PlannedRounds
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.engines.checkpoints.options import (
    CheckpointError,
    Checkpoints,
    Progress,
)
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.checks import check_every
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.inspection import logger
from fedbilevel.engines.iteration import (
    affordable_rounds,
    counts_of,
    iterate,
    repeated_means,
)
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.noise_secret import with_noise_secret
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.preparation import (
    Prepared,
    RunSpec,
    configuration_of,
    prepare,
)
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import count_noun


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
        checkpoints: directory and schedule of the checkpoints for `resume`; none by
            default.
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
    spec = RunSpec(
        problem,
        algorithm,
        devices,
        x,
        y,
        rounds,
        seed,
        participation,
        weights,
        engine,
        limits,
    )
    return _selected(every, rounds_of(spec, checkpoints, every))


def rounds_of(
    spec: RunSpec, checkpoints: Checkpoints | None = None, every: int = 1
) -> Generator[Round, None, None]:
    """Run a specification and yield each finished round, as `run` does.

    Unlike `run`, it also yields the first round and rounds between every n-th, about
    two a second, so that callers can show progress or stop.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import FedBiO, InMemoryDevices, LocalExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> problem = BilevelProblem(loss, loss)
        >>> spec = RunSpec(problem, FedBiO(0.1), devices, 3.0, 0.0, rounds=2)
        >>> [round.number for round in rounds_of(spec)]
        [0, 1]
    """
    check_every(every)
    prepared, store = _ready(spec, checkpoints)
    if store is not None and store.rounds:
        raise CheckpointError(
            f"{store.directory} already has a checkpoint of "
            f"{count_noun(store.rounds[-1], 'round')}. Call resume to continue from "
            "it, or choose another directory."
        )
    _warn_other_length(spec.algorithm, spec.rounds)
    prepared = with_noise_secret(prepared, store)
    first = Progress(0, prepared.state, Costs(), ())
    return iterate(prepared, first, store, every)


def resume(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    checkpoints: Checkpoints,
    seed: int = 0,
    participation: Participation = FullParticipation(),
    weights: Weighting = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
    every: int = 1,
) -> Generator[Round, None, None]:
    """Resume a run from its newest checkpoint.

    The result is equal to that of an uninterrupted run, bit by bit. A damaged
    checkpoint is skipped in favour of the one before it; without a checkpoint the run
    starts at round 0. Engine, `rounds` and `every` may differ from the first call. If
    the run is complete, its last round is yielded again.

    Args:
        problem: as for `run`, like all other arguments.
        algorithm: as for `run`.
        devices: as for `run`.
        x: initial upper variable of the run.
        y: initial lower variable of the run.
        rounds: number of rounds of the whole run.
        checkpoints: the checkpoints of the run.
        seed: as for `run`.
        participation: as for `run`.
        weights: as for `run`.
        engine: as for `run`.
        limits: as for `run`.
        every: as for `run`, counted from the first round of the run. The last bit may
            differ between `every=1` and larger values, as for `run`.

    Returns:
        An iterator of the remaining rounds.

    Raises:
        CheckpointError: if the checkpoint belongs to a run with other arguments; the
            message names them.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, Checkpoints, FedBiO, InMemoryDevices, LocalExamples,
        ...     resume, run,
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> inputs = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> checkpoints = Checkpoints(tempfile.mkdtemp(), every=2)
        >>> *_, last = run(*inputs, rounds=4, checkpoints=checkpoints)
        >>> later = resume(*inputs, rounds=6, checkpoints=checkpoints)
        >>> [round.number for round in later]
        [4, 5]
    """
    spec = RunSpec(
        problem,
        algorithm,
        devices,
        x,
        y,
        rounds,
        seed,
        participation,
        weights,
        engine,
        limits,
    )
    return _selected(every, remaining_rounds_of(spec, checkpoints, every))


def remaining_rounds_of(
    spec: RunSpec, checkpoints: Checkpoints, every: int = 1
) -> Generator[Round, None, None]:
    """Resume a specification from its newest checkpoint, as `resume` does.

    Unlike `resume`, it also yields rounds between every n-th, as `rounds_of` does.
    """
    check_every(every)
    prepared, store = _ready(spec, checkpoints)
    assert store is not None, "_ready returns a store for checkpoints"
    progress = store.newest(prepared.state)
    if progress is None:
        progress = Progress(0, prepared.state, Costs(), ())
    if progress.rounds > spec.rounds:
        raise ValueError(
            f"rounds is {spec.rounds}, but {store.directory} has a checkpoint of "
            f"{count_noun(progress.rounds, 'round')}. Set rounds to at least "
            f"{progress.rounds}."
        )
    repeated = repeated_means(prepared, progress.rounds)
    if progress.rounds >= affordable_rounds(prepared, repeated):
        last = _saved_round(progress, prepared)._replace(is_last=True)
        return (each for each in [last])
    prepared = with_noise_secret(prepared, store, resumed=progress)
    return iterate(prepared, progress, store, every)


def best_round(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    checkpoints: Checkpoints,
    seed: int = 0,
    participation: Participation = FullParticipation(),
    weights: Weighting = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
) -> Round:
    """Return the round of the checkpoint with the smallest value of `best`.

    Args:
        problem: as for `run`, like all other arguments.
        algorithm: as for `run`.
        devices: as for `run`.
        x: initial upper variable of the run.
        y: initial lower variable of the run.
        checkpoints: the checkpoints of the run, with `best`.
        seed: as for `run`.
        participation: as for `run`.
        weights: as for `run`.
        engine: as for `run`.
        limits: as for `run`.

    Raises:
        CheckpointError: if there is no such checkpoint, or it belongs to another run.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, Checkpoints, FedBiO, InMemoryDevices, LocalExamples,
        ...     best_round, run,
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> inputs = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> checkpoints = Checkpoints(
        ...     tempfile.mkdtemp(),
        ...     every=1,
        ...     keep=1,
        ...     measure=lambda round: {"distance": abs(round.number - 2)},
        ...     best="distance",
        ... )
        >>> *_, last = run(*inputs, rounds=6, checkpoints=checkpoints)
        >>> best_round(*inputs, checkpoints=checkpoints).number
        2
    """
    spec = RunSpec(
        problem,
        algorithm,
        devices,
        x,
        y,
        seed=seed,
        participation=participation,
        weights=weights,
        engine=engine,
        limits=limits,
    )
    prepared, store = _ready(spec, checkpoints)
    assert store is not None, "_ready returns a store for checkpoints"
    progress = store.best(prepared.state)
    if progress is None:
        raise CheckpointError(
            f"{store.directory} has no checkpoint with a metric to compare. Run with "
            "Checkpoints(..., measure=..., best=...)."
        )
    return _saved_round(progress, prepared)


def _saved_round(progress: Progress, prepared: Prepared) -> Round:
    return Round(
        progress.rounds - 1,
        progress.state,
        (),
        progress.costs,
        progress.history,
        counts_of(progress, prepared.spec.devices.device_count).snapshot(),
        prepared.spending,
        repeated_means(prepared, progress.rounds),
    )


def _ready(
    spec: RunSpec, checkpoints: Checkpoints | None
) -> tuple[Prepared, Store | None]:
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise TypeError(
            f"checkpoints is {checkpoints!r}. Pass Checkpoints({checkpoints!r})."
        )
    prepared = prepare(spec)
    if checkpoints is None:
        return prepared, None
    return prepared, Store(checkpoints, configuration_of(prepared))


def _selected(
    every: int, iterator: Generator[Round, None, None]
) -> Generator[Round, None, None]:
    """Yield every n-th round and the last."""
    with closing(iterator) as results:
        for result in results:
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
