"""What an engine is: it carries out one exchange, and knows no algorithm by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Phase,
    Private,
    Server,
)
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.costs import DeviceCosts
from fedbilevel.engines.limits import Limits
from fedbilevel.mathematics.problem import BilevelProblem

NO_DEVICE = np.uint32(2**32 - 1)
"""The number of devices that the server draws by: there are never so many."""


@dataclass(frozen=True)
class PhaseReference:
    """Which phase of an algorithm to run; static in compiled code.

    Attributes:
        opening: whether it belongs to the first round.
        index: its place in the round, the first one where a phase is repeated.

    Example:
        >>> PhaseReference(opening=True, index=0).opening
        True
    """

    opening: bool
    index: int

    def of(self, algorithm: FederatedAlgorithm, problem: BilevelProblem) -> Phase:
        """Return the phase itself."""
        phases = algorithm.opening if self.opening else algorithm.phases
        return phases(problem)[self.index]


class Moment(NamedTuple):
    """When in a run an exchange takes place.

    Attributes:
        round_number: counted from 0.
        exchange: its place in the round, counted from 0.

    Example:
        >>> Moment(round_number=3, exchange=0).round_number
        3
    """

    round_number: int | np.int32 | Int[Array, ""]
    exchange: int | np.int32 | Int[Array, ""]


@dataclass(frozen=True, eq=False)
class Participants:
    """The devices of one round and their weights in its means.

    Compared by identity: rounds with the same devices share one, and an engine need not
    work out anew what follows from it.

    Attributes:
        devices: device numbers, none twice.
        weights: summing to 1; a device of weight zero is absent.

    Example:
        >>> import numpy as np
        >>> Participants(np.array([3, 1]), np.array([1.0, 0.0])).present
        array([3])
    """

    devices: Int[np.ndarray, "cohort"]
    weights: Float[np.ndarray, "cohort"]

    @property
    def present(self) -> Int[np.ndarray, "present"]:
        """The devices that are not absent."""
        return self.devices[self.weights > 0]


class RunState(NamedTuple):
    """All that a run carries from one exchange to the next.

    Attributes:
        server: the server's state.
        private: every device's private state, stacked by device number.

    Example:
        >>> RunState(server=1.0, private=()).server
        1.0
    """

    server: Server
    private: Private


class Report(NamedTuple):
    """What one exchange tells about itself.

    Attributes:
        devices: who was asked, and fillers.
        present: which of these were asked.
        counted: in any number of pieces, whose uploads the server averaged. They may
            still be under way, so reading who they are waits for the exchange.
        info: the weighted mean of what devices reported.
        dispersion: a tree like the upload, with each leaf's weighted mean squared
            distance from the average: how far devices had drifted apart.
        reasons: why uploads did not count, by device, where the engine knows more than
            that their numbers were bad.

    Example:
        >>> import numpy as np
        >>> yes, no = np.array([True]), np.array([False])
        >>> report = Report(np.array([0, 2]), np.array([True] * 2), (yes, no), {}, 0.0)
        >>> report.contributors, report.excluded
        (array([0]), array([2]))
    """

    devices: Int[np.ndarray, "asked"]
    present: Bool[np.ndarray, "asked"]
    counted: tuple[Bool[Array | np.ndarray, "*piece"], ...]
    info: Info
    dispersion: PyTree
    reasons: Mapping[int, str] = MappingProxyType({})

    @property
    def contributors(self) -> Int[np.ndarray, "contributors"]:
        """The devices whose uploads the server averaged."""
        devices: Int[np.ndarray, "contributors"] = self.devices[self._counted()]
        return devices

    @property
    def excluded(self) -> Int[np.ndarray, "left"]:
        """The devices that were asked, and whose uploads did not count."""
        devices: Int[np.ndarray, "left"] = self.devices[self.present & ~self._counted()]
        return devices

    def _counted(self) -> Bool[np.ndarray, "asked"]:
        pieces = [np.asarray(piece).ravel() for piece in self.counted]
        return np.concatenate(pieces)[: len(self.devices)]


@dataclass(frozen=True)
class Job:
    """What stays the same throughout a run.

    Attributes:
        problem: the two losses and their oracles.
        algorithm: the phases of a round.
        devices: the data.
        form: shapes and types of one device's data as it is loaded.
        key: the source of all random draws.
        opening: the phases of the first round.
        phases: the phases of every later round.
        cohort_size: how many devices a round usually asks.
        loaded_bytes: what a device's data add to memory when it takes part.
        limits: that uploads are held to.
        costs: what a device spends in each phase.
        placed: the data where an engine has laid them for good; none if it loads them.

    Example:
        >>> from dataclasses import fields
        >>> [field.name for field in fields(Job)][:3]
        ['problem', 'algorithm', 'devices']
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    form: StoredData
    key: RandomKey
    opening: tuple[PhaseReference, ...]
    phases: tuple[PhaseReference, ...]
    cohort_size: int
    loaded_bytes: int
    limits: Limits
    costs: Mapping[PhaseReference, DeviceCosts]
    placed: StoredData | None = None


@runtime_checkable
class Engine(Protocol):
    """Carries out exchanges: on one machine, on many, or in a real federation."""

    def example_device(self, device_count: int) -> int:
        """Return a device whose data this process may look at."""

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return what a run's state holds of devices that all begin with `private`."""

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both with their arrays where the engine wants them."""

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""


class Block(NamedTuple):
    """Consecutive rounds that were carried out in one call.

    Attributes:
        state: after the last of them.
        reports: what each exchange of the last told.
        counted: whose uploads the server averaged in each exchange of each round, with
            room for more rounds and devices. They may still be under way.
        setbacks: of each round, how often the algorithm had stepped back by then; ()
            if it cannot.

    Example:
        >>> Block._fields
        ('state', 'reports', 'counted', 'setbacks')
    """

    state: RunState
    reports: tuple[Report, ...]
    counted: Bool[Array, "rounds exchanges cohort"]
    setbacks: PyTree


@runtime_checkable
class BlockEngine(Protocol):
    """An engine that can also carry out several rounds in one call.

    The methods are optional: an engine without them is asked for one exchange after
    another, with the same numbers.
    """

    def rounds_at_once(self, job: Job) -> int:
        """Return the most rounds of one call; 0 if the run's do not fit into one."""

    def rounds(
        self,
        job: Job,
        first: int,
        state: RunState,
        participants: Sequence[Participants],
    ) -> Block:
        """Carry out the rounds from number `first` on, one for each participants.

        None of them is an opening round of other phases, and none has more participants
        than usual (`Job.cohort_size`).
        """


def device_key(
    key: RandomKey, moment: Moment, device: int | Int[Array, ""]
) -> RandomKey:
    """Return the key of a device's work in an exchange.

    Every engine derives keys this way, and so draws the same samples: first the round,
    then the exchange, then the device. The start of the work folds in 0, local step s
    folds in s + 1, the finish folds in the number of steps + 1.

    Example:
        >>> import jax
        >>> device_key(jax.random.key(0), Moment(3, 0), device=5).shape
        ()
    """
    for number in (*moment, device):
        key = jax.random.fold_in(key, number)
    return key


def server_key(key: RandomKey, moment: Moment) -> RandomKey:
    """Return the key of what the server draws in an exchange.

    Derived as if it were a device, of a number that no device has.

    Example:
        >>> import jax
        >>> server_key(jax.random.key(0), Moment(3, 0)).shape
        ()
    """
    for number in (*moment, NO_DEVICE):
        key = jax.random.fold_in(key, number)
    return key
