"""What an engine is: it carries out one exchange, and knows no algorithm by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Phase,
    Private,
    Server,
)
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import RandomKey
from fedbilevel.engines.accounting import DeviceCosts
from fedbilevel.mathematics.problem import BilevelProblem


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


class Participants(NamedTuple):
    """The devices of one round and their weights in its means.

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
        contributors: the devices whose uploads the server averaged.
        info: the weighted mean of what devices reported.
        dispersion: a tree like the uplink, with each leaf's weighted mean squared
            distance from the average: how far devices had drifted apart.

    Example:
        >>> import numpy as np
        >>> Report(contributors=np.array([0, 2]), info={}, dispersion=0.0).contributors
        array([0, 2])
    """

    contributors: Int[np.ndarray, "contributors"]
    info: Info
    dispersion: PyTree


@dataclass(frozen=True)
class Job:
    """What stays the same throughout a run.

    Attributes:
        problem: the two losses and their oracles.
        algorithm: the phases of a round.
        devices: the data.
        key: the source of all random draws.
        opening: the phases of the first round.
        phases: the phases of every later round.
        cohort_size: how many devices a round usually asks.
        loaded_bytes: what a device's data add to memory when it takes part.
        costs: what a device spends in each phase.

    Example:
        >>> from dataclasses import fields
        >>> [field.name for field in fields(Job)][:3]
        ['problem', 'algorithm', 'devices']
    """

    problem: BilevelProblem
    algorithm: FederatedAlgorithm
    devices: Devices
    key: RandomKey
    opening: tuple[PhaseReference, ...]
    phases: tuple[PhaseReference, ...]
    cohort_size: int
    loaded_bytes: int
    costs: Mapping[PhaseReference, DeviceCosts]


@runtime_checkable
class Engine(Protocol):
    """Carries out exchanges: on one machine, on many, or in a real federation."""

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
