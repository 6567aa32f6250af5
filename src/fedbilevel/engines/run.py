"""Running an algorithm: an iterator of rounds, the same for every engine."""

from collections.abc import Generator
from contextlib import closing

from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.devices import Devices
from fedbilevel.engines.checkpoints.options import (
    CheckpointError,
    Checkpoints,
    Progress,
)
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.checks import check_every
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.iteration import counts_of, iterate
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.preparation import (
    Prepared,
    RunSpec,
    configuration_of,
    prepare,
)
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.screening import logger
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
    checkpoints: Checkpoints | None = None,
    every: int = 1,
) -> Generator[Round, None, None]:
    """Run an algorithm and yield each round as it is done.

    Args:
        problem: the two losses.
        algorithm: what devices and server do in a round.
        devices: the data.
        x: where the upper variable starts.
        y: where the lower variable starts.
        rounds: how many rounds to run.
        seed: of every random choice; the same seed gives the same bits.
        participation: who takes part in a round.
        weights: of the devices in every mean, in any unit; all alike by default, as in
            the paper. A device of weight zero is absent. Together with a sample of
            devices, uneven weights are those of the sample: its mean is then a ratio,
            whose expectation is not the mean over all devices.
        engine: where the devices' work is done.
        limits: how large uploads may be, and how far from what was sent. What exceeds
            them, or is not finite, is left out of the mean as if its device were
            absent, and a warning names it. By default any finite upload counts.
        checkpoints: where to keep what `resume` needs; nowhere by default.
        every: rounds between two that are yielded; the last always is. `Simulation`
            carries out the rounds in between in one compiled call, which saves the time
            of Python where a round takes milliseconds. Costs, exclusions, warnings and
            checkpoints are the same. So are the numbers for any `every` above 1; those
            of 1 are compiled otherwise, and may differ in the last bit.

    Returns:
        An iterator of rounds.

    Raises:
        ValueError: if the arguments do not fit together.
        NoUploadsError: while iterating, if all devices of an exchange were left out.

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
    return _selected(every, rounds, rounds_of(spec, checkpoints, every))


def rounds_of(
    spec: RunSpec, checkpoints: Checkpoints | None = None, every: int = 1
) -> Generator[Round, None, None]:
    """Run what is asked and yield each round as it is done, as `run` does.

    Unlike `run`, it also yields the first round and others between every n-th, about
    two a second, for whoever shows progress or may have to stop.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import FedBiO, InMemoryDevices, LocalExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> problem = BilevelProblem(loss, loss)
        >>> spec = RunSpec(problem, FedBiO(0.1), devices, 3.0, 0.0, rounds=2)
        >>> [done.number for done in rounds_of(spec)]
        [0, 1]
    """
    check_every(every)
    prepared, store = _ready(spec, checkpoints)
    if store is not None and store.rounds:
        raise CheckpointError(
            f"{store.directory} already has a checkpoint of {store.rounds[-1]} rounds; "
            "call resume to go on from it, or choose another directory."
        )
    _mention_other_length(spec.algorithm, spec.rounds)
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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
    every: int = 1,
) -> Generator[Round, None, None]:
    """Go on with a run from its newest checkpoint, to the same bits.

    A checkpoint that was damaged is skipped for the one before it; without any, the run
    begins. The engine may be another, and so may `rounds` and `every`. Of a run that is
    done, it yields the last round again.

    Args:
        problem: as for `run`, and so are all the others.
        algorithm: as for `run`.
        devices: as for `run`.
        x: where the upper variable started.
        y: where the lower variable started.
        rounds: how many rounds the whole run has.
        checkpoints: those of the run.
        seed: as for `run`.
        participation: as for `run`.
        weights: as for `run`.
        engine: as for `run`.
        limits: as for `run`.
        every: as for `run`, counted from the run's first round. Between 1 and more the
            last bit may differ, as `run` says.

    Returns:
        An iterator of the rounds that were missing.

    Raises:
        CheckpointError: if the checkpoint is of a run that was asked something else;
            the message says what.

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
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> directory = tempfile.mkdtemp()
        >>> *_, last = run(*what, rounds=4, checkpoints=Checkpoints(directory, every=2))
        >>> later = resume(*what, rounds=6, checkpoints=Checkpoints(directory, every=2))
        >>> [done.number for done in later]
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
    return _selected(every, rounds, remaining_rounds_of(spec, checkpoints, every))


def remaining_rounds_of(
    spec: RunSpec, checkpoints: Checkpoints, every: int = 1
) -> Generator[Round, None, None]:
    """Go on with what is asked from its newest checkpoint, as `resume` does.

    Unlike `resume`, it also yields other rounds, as `rounds_of` does.

    Example:
        >>> remaining_rounds_of.__name__
        'remaining_rounds_of'
    """
    check_every(every)
    prepared, store = _ready(spec, checkpoints)
    assert store is not None, "there is a store for checkpoints"
    progress = store.newest(prepared.state)
    if progress is None:
        progress = Progress(0, prepared.state, Costs(), ())
    if progress.rounds > spec.rounds:
        raise ValueError(
            f"{store.directory} has a checkpoint of {progress.rounds} rounds, but "
            f"rounds={spec.rounds}; ask for at least as many."
        )
    if progress.rounds == spec.rounds:
        return (done for done in [_kept(progress, spec.devices.device_count)])
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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
) -> Round:
    """Return the round whose checkpoint was kept as the best.

    Args:
        problem: as for `run`, and so are all the others.
        algorithm: as for `run`.
        devices: as for `run`.
        x: where the upper variable started.
        y: where the lower variable started.
        checkpoints: those of the run, with `best`.
        seed: as for `run`.
        participation: as for `run`.
        weights: as for `run`.
        engine: as for `run`.
        limits: as for `run`.

    Raises:
        CheckpointError: if there is none, or it is of another run.

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
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> checkpoints = Checkpoints(
        ...     tempfile.mkdtemp(),
        ...     every=1,
        ...     keep=1,
        ...     measure=lambda done: {"distance": abs(done.number - 2)},
        ...     best="distance",
        ... )
        >>> *_, last = run(*what, rounds=6, checkpoints=checkpoints)
        >>> best_round(*what, checkpoints=checkpoints).number
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
    assert store is not None, "best_round has checkpoints"
    found = store.best(prepared.state)
    if found is None:
        raise CheckpointError(
            f"{store.directory} has no checkpoint with a number to choose it by; run with "
            "Checkpoints(..., measure=..., best=...)."
        )
    return _kept(found, devices.device_count)


def _kept(progress: Progress, device_count: int) -> Round:
    return Round(
        progress.rounds - 1,
        progress.state,
        (),
        progress.costs,
        progress.history,
        counts_of(progress, device_count).snapshot(),
    )


def _ready(
    spec: RunSpec, checkpoints: Checkpoints | None
) -> tuple[Prepared, Store | None]:
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise TypeError(
            f"checkpoints is {checkpoints!r}; give Checkpoints({checkpoints!r})."
        )
    prepared = prepare(spec)
    if checkpoints is None:
        return prepared, None
    return prepared, Store(checkpoints, configuration_of(prepared))


def _selected(
    every: int, rounds: int, iterator: Generator[Round, None, None]
) -> Generator[Round, None, None]:
    """Yield every n-th round and the last."""
    with closing(iterator) as ends:
        for done in ends:
            count = done.number + 1
            if count % every == 0 or count == rounds:
                yield done


def _mention_other_length(algorithm: FederatedAlgorithm, rounds: int) -> None:
    planned = getattr(algorithm, "rounds", rounds)
    if planned != rounds:
        logger.warning(
            "%s decays its rates over rounds=%s, but the run has rounds=%d: %s. Give "
            "both the same number.",
            type(algorithm).__name__,
            planned,
            rounds,
            "it ends while x still moves fast"
            if planned > rounds
            else "x stays where it is in the last of them",
        )
