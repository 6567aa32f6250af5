"""The protocol of engines. An engine runs one exchange of any algorithm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

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
from fedbilevel.data.examples import DeviceData, RandomKey, StoredData
from fedbilevel.engines.costs import DeviceCosts
from fedbilevel.engines.limits import Limits
from fedbilevel.mathematics import keys
from fedbilevel.mathematics.problem import BilevelProblem

NO_DEVICE = np.uint32(2**32 - 1)
"""The device number in the server's random keys. No device has this number."""


@dataclass(frozen=True)
class PhaseReference:
    """A reference to a phase of an algorithm; static in compiled code.

    Attributes:
        opening: True if the phase belongs to the first round.
        index: position of the phase in the round; the first position if it is repeated.
    """

    opening: bool
    index: int

    def of(self, algorithm: FederatedAlgorithm, problem: BilevelProblem) -> Phase:
        """Return the phase of an algorithm, which builds its phases in each call."""
        phases = algorithm.opening if self.opening else algorithm.phases
        return phases(problem)[self.index]


class Moment(NamedTuple):
    """The position of an exchange in a run.

    Attributes:
        round_number: round number, counted from 0.
        exchange: position of the exchange in the round, counted from 0.
    """

    round_number: int | np.int32 | Int[Array, ""]
    exchange: int | np.int32 | Int[Array, ""]


@dataclass(frozen=True, eq=False)
class Participants:
    """The devices of one round and their weights in its means.

    Compared by identity: rounds with the same devices share one object, so an engine
    can reuse values computed from it.

    Attributes:
        devices: distinct device numbers.
        weights: weights with sum 1; a device of weight zero is absent.

    Example:
        >>> import numpy as np
        >>> Participants(np.array([3, 1]), np.array([1.0, 0.0])).present
        array([3])
    """

    devices: Int[np.ndarray, "cohort"]
    weights: Float[np.ndarray, "cohort"]

    @property
    def present(self) -> Int[np.ndarray, "present"]:
        """Numbers of the devices that are not absent."""
        return self.devices[self.weights > 0]


class RunState(NamedTuple):
    """The state of a run between two exchanges.

    Attributes:
        server: the server state.
        private: private states of all devices, stacked by device number.
    """

    server: Server
    private: Private


class Report(NamedTuple):
    """The report of one exchange.

    Attributes:
        devices: device numbers contacted in this exchange, padded (see `present`).
        present: mask of `devices`: True if contacted, False for padding.
        counted: mask of `devices`, in any number of pieces: True if the server averaged
            the upload. The arrays may still be being computed; reading them, or
            `contributors` and `excluded`, waits for the exchange.
        info: weighted mean of the values that devices reported.
        dispersion: a tree like the upload, with each leaf's weighted mean squared
            distance from the average: a measure of client drift.
        reasons: reason of the exclusion, by device number, if the engine knows more
            than that the upload violated the limits.
        costs: costs of a device, if the engine counts them in each exchange; None if
            they are those of `Job.costs`.

    Example:
        >>> import numpy as np
        >>> yes, no = np.array([True]), np.array([False])
        >>> report = Report(np.array([0, 2]), np.array([True] * 2), (yes, no), {}, 0.0)
        >>> report.contributors, report.excluded
        (array([0]), array([2]))
    """

    devices: Int[np.ndarray, "contacted"]
    present: Bool[np.ndarray, "contacted"]
    counted: tuple[Bool[Array | np.ndarray, "*piece"], ...]
    info: Info
    dispersion: PyTree
    reasons: Mapping[int, str] = MappingProxyType({})
    costs: DeviceCosts | None = None

    @property
    def contributors(self) -> Int[np.ndarray, "contributors"]:
        """Numbers of the devices whose uploads the server averaged."""
        devices: Int[np.ndarray, "contributors"] = self.devices[self._counted()]
        return devices

    @property
    def excluded(self) -> Int[np.ndarray, "excluded"]:
        """Numbers of the contacted devices whose uploads the server did not average."""
        mask = self.present & ~self._counted()
        devices: Int[np.ndarray, "excluded"] = self.devices[mask]
        return devices

    def _counted(self) -> Bool[np.ndarray, "contacted"]:
        pieces = [np.asarray(piece).ravel() for piece in self.counted]
        return np.concatenate(pieces)[: len(self.devices)]


@dataclass(frozen=True)
class Job:
    """The constant inputs of a run.

    Attributes:
        problem: the two losses and their oracles.
        algorithm: algorithm, which defines the phases.
        devices: data of all devices.
        form: shapes and dtypes of one device's data when loaded.
        key: random key of the run, from which all others derive.
        opening: phases of the first round.
        phases: phases of every later round.
        cohort_size: usual number of participants of a round.
        loaded_bytes: memory that a device's data need when loaded.
        limits: limits on uploads.
        costs: costs of a device in each phase; empty if reports have them.
        placed: data that the engine has put on its mesh for the whole run; None if it
            loads them in each exchange.
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    form: DeviceData
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
    """An engine: it runs exchanges on one machine, on a mesh or in a federation."""

    def example_device(self, device_count: int) -> int:
        """Return the number of a device whose data this process may read."""

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the private states of all devices, which all start at `private`."""

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return job and state with their arrays on the engine's hardware."""

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Run an exchange; return the state after it and its report."""


class Block(NamedTuple):
    """The result of consecutive rounds that ran in one call.

    Attributes:
        state: state after the last round.
        reports: reports of the exchanges of the last round.
        counted: mask of the devices whose uploads the server averaged, for each
            exchange of each round, padded with further rounds and devices. The array
            may still be being computed.
        notices: numbers of the server state's notices at the end of each round, by
            their messages.
    """

    state: RunState
    reports: tuple[Report, ...]
    counted: Bool[Array, "rounds exchanges cohort"]
    notices: Mapping[str, Int[Array, "rounds"]]


@runtime_checkable
class BlockEngine(Protocol):
    """An engine that can also run several rounds in one call.

    The methods are optional: an engine without them runs single exchanges, with the
    same numbers.
    """

    def rounds_at_once(self, job: Job) -> int:
        """Return the most rounds of one call; 0 if the engine must run exchanges."""

    def rounds(
        self,
        job: Job,
        first: int,
        state: RunState,
        participants: Sequence[Participants],
    ) -> Block:
        """Run consecutive rounds from number `first`, one for each `Participants`.

        No round is an opening round with other phases, and no round has more than
        `Job.cohort_size` participants.
        """


@runtime_checkable
class PrivateEngine(Protocol):
    """An engine that states what ε depends on. Runs with noise need it.

    An engine around another one returns the values of that engine.
    """

    @property
    def key_is_secret(self) -> bool:
        """True if `Job.key` stays in the processes of the run.

        Noise and samples of participants then follow from it, the key of a run with
        noise from a secret, and a sample lowers ε. False if devices receive the key, or
        know the participants of a round; the engine then has another source of noise.
        """

    @property
    def sees_uploads(self) -> bool:
        """True if a server reads single uploads, not only their sum.

        It then refuses `DeviceNoise`, whose ε is that of the sum.
        """

    @property
    def noised_means(self) -> int:
        """The number of exchanges with noise so far, in all processes of the run.

        It is 0 if an exchange that is repeated has the same noise.
        """


def device_key(
    key: RandomKey,
    moment: Moment | Int[Array | np.ndarray, "2"],
    device: int | Int[Array | np.ndarray, "*devices"],
) -> RandomKey:
    """Return the random key of a device in an exchange.

    Every engine derives keys this way, and so draws the same samples: the round is
    folded in first, the exchange second and the device third. The start of the work
    folds in 0, local step s folds in s + 1, the finish folds in the number of steps
    + 1.

    Example:
        >>> import jax
        >>> device_key(jax.random.key(0), Moment(3, 0), device=5).shape
        ()
    """
    for number in (*moment, device):
        key = keys.fold_in(key, number)
    return key


def server_key(
    key: RandomKey, moment: Moment | Int[Array | np.ndarray, "2"]
) -> RandomKey:
    """Return the random key of the server in an exchange.

    It is derived as a device's key, with a number that no device has.

    Example:
        >>> import jax
        >>> server_key(jax.random.key(0), Moment(3, 0)).shape
        ()
    """
    for number in (*moment, NO_DEVICE):
        key = keys.fold_in(key, number)
    return key
