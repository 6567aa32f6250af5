"""Running an algorithm: an iterator of rounds, the same for every engine."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Private, Server
from fedbilevel.data.devices import Devices
from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.checkpoints import (
    CheckpointError,
    Checkpoints,
    Progress,
    Store,
)
from fedbilevel.engines.participation import Everyone, Participation
from fedbilevel.engines.preparation import (
    Prepared,
    configuration_of,
    participants_of,
    prepare,
)
from fedbilevel.engines.protocol import (
    Engine,
    Moment,
    Participants,
    Report,
    RunState,
)
from fedbilevel.engines.screening import inspect
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

UNSEEN = 2
"""Rounds under way before the uploads of the first are looked at."""


class Round(NamedTuple):
    """A finished round.

    Attributes:
        number: counted from 0.
        state: all that the next round begins with, where the engine has it.
        reports: what each of its exchanges told.
        costs: all that has been spent since the run began.
        history: what was measured at each checkpoint so far.

    Example:
        >>> from fedbilevel import Costs
        >>> from fedbilevel.algorithms.momentum import initial_state
        >>> import jax.numpy as jnp
        >>> server = initial_state(jnp.ones(1), jnp.ones(2))
        >>> Round(0, RunState(server, private=()), (), Costs()).y
        Array([1., 1.], dtype=float32)
    """

    number: int
    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    history: tuple[Mapping[str, float | int], ...] = ()

    @property
    def participants(self) -> Int[np.ndarray, "contributors"]:
        """The devices whose uploads counted in the round's last exchange."""
        return self.reports[-1].contributors

    @property
    def server(self) -> Server:
        """The server's state after the round."""
        return _local(self.state.server)

    @property
    def private(self) -> Private:
        """What each device keeps, by device number; nothing if devices keep nothing.

        Read it before the next round is asked for, which writes over it.
        """
        return self.state.private

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return _local(self.state.server.x)

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return _local(self.state.server.y)


def run(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation = Everyone(),
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    norm_limit: float | None = None,
    checkpoints: Checkpoints | None = None,
) -> Iterator[Round]:
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
        norm_limit: the largest Euclidean norm of an upload; what is larger, or not
            finite, is left out of the mean as if its device were absent, and a warning
            names it. None to welcome any finite upload.
        checkpoints: where to keep what `resume` needs; nowhere by default.

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
    if rounds < 1:
        raise ValueError(f"run needs at least 1 round, but rounds={rounds}.")
    prepared = prepare(
        problem,
        algorithm,
        devices,
        x,
        y,
        seed,
        participation,
        weights,
        norm_limit,
        engine.example_device,
    )
    store = None
    if checkpoints is not None:
        store = Store(
            checkpoints, configuration_of(prepared, x, y, seed, participation)
        )
        if store.rounds:
            raise CheckpointError(
                f"{store.folder} already has a checkpoint of {store.rounds[-1]} rounds;"
                " call resume to go on from it, or choose another folder."
            )
    first = Progress(0, prepared.state, Costs(), ())
    return _rounds(prepared, first, rounds, seed, participation, engine, store)


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
    participation: Participation = Everyone(),
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    norm_limit: float | None = None,
) -> Iterator[Round]:
    """Go on with a run from its newest checkpoint, to the same bits.

    A checkpoint that was damaged is skipped for the one before it; without any, the run
    begins. The engine may be another, and so may `rounds`.

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
        norm_limit: as for `run`.

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
        >>> folder = tempfile.mkdtemp()
        >>> *_, last = run(*what, rounds=4, checkpoints=Checkpoints(folder, every=2))
        >>> later = resume(*what, rounds=6, checkpoints=Checkpoints(folder, every=2))
        >>> [done.number for done in later]
        [4, 5]
    """
    prepared = prepare(
        problem,
        algorithm,
        devices,
        x,
        y,
        seed,
        participation,
        weights,
        norm_limit,
        engine.example_device,
    )
    store = Store(checkpoints, configuration_of(prepared, x, y, seed, participation))
    found = store.newest(prepared.state)
    progress = found or Progress(0, prepared.state, Costs(), ())
    return _rounds(prepared, progress, rounds, seed, participation, engine, store)


def _rounds(
    prepared: Prepared,
    progress: Progress,
    rounds: int,
    seed: int,
    participation: Participation,
    engine: Engine,
    store: Store | None,
) -> Iterator[Round]:
    job, state = engine.begin(prepared.job, progress.state)
    spent, history = progress.costs, progress.history
    unseen: deque[Round] = deque()
    participants: Participants | None = None
    try:
        for number in range(progress.rounds, rounds):
            chosen = np.asarray(participation(seed, number, job.devices.device_count))
            if participants is None or not np.array_equal(participants.devices, chosen):
                participants = participants_of(number, chosen, prepared.weights)
            reports = []
            for exchange, reference in enumerate(job.phases if number else job.opening):
                state, report = engine.exchange(
                    job, reference, Moment(number, exchange), state, participants
                )
                reports.append(report)
                # A device whose upload is left out has spent as much as any other.
                asked = int(report.present.sum())
                spent = spent.plus(job.costs[reference].times(asked))
            done = Round(number, state, tuple(reports), spent, history)
            due = store is not None and store.due(number + 1, rounds)
            # Looking at a round waits for it, while later ones could be computed.
            unseen.append(done)
            while len(unseen) > (0 if due or number + 1 == rounds else UNSEEN):
                seen = unseen.popleft()
                inspect(seen.number, seen.reports)
            if store is not None and due:
                history = *history, *store.measured(done)
                done = done._replace(history=history)
                store.save(Progress(number + 1, state, spent, history))
            yield done
    finally:
        if store is not None:
            store.close()


def _local(tree: PyTree) -> PyTree:
    """Return arrays that are the same everywhere as arrays of this process alone.

    What is computed from them then needs no other process.
    """

    def own(leaf: Array) -> Array:
        if isinstance(leaf, jax.core.Tracer) or len(leaf.sharding.device_set) == 1:
            return leaf
        return leaf.addressable_data(0)

    return jax.tree.map(own, tree)
