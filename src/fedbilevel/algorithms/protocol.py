"""What a federated algorithm is: rounds made of phases, a phase being one exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import PyTree

from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Server: TypeAlias = Any
"""The server's state; it has at least the fields `x` and `y`."""
Private: TypeAlias = PyTree
"""What stays on a device between the rounds it takes part in."""
Downlink: TypeAlias = PyTree
"""All that reaches a device in an exchange."""
Carry: TypeAlias = PyTree
"""A device's working state between two local steps."""
Info: TypeAlias = PyTree
"""Scalars about a device's work, averaged for the round's report."""


class Upload(NamedTuple):
    """All that leaves a device in an exchange.

    Attributes:
        update: the variables that the device has worked on, each a tree.
        beside: other numbers, such as votes, counts and answers to questions.

    Example:
        >>> Upload(update=(1.0, 2.0)).beside
        ()
    """

    update: tuple[PyTree, ...]
    beside: PyTree = ()


class Phase(NamedTuple):
    """One exchange: the server broadcasts, devices work alone, the server averages.

    Every function is pure. `start`, `step` and `finish` see one device and never
    communicate; how devices and steps are looped over is the engine's affair.

    Attributes:
        name: of the phase; a round may have a phase several times, under one name.
        steps: local steps in this exchange.
        broadcast: what the server sends to every participating device.
        start: a device's first working state, from what it received and kept.
        step: one local step.
        finish: what the device uploads, what it keeps, and what it reports.
        server: the server's next state, from the weighted mean of the uploads; the key
            is for draws of its own.
        receive: what the server averages of one upload, from it and from what was sent
            down; decodes what `finish` encoded. None where uploads are averaged as they
            are.
        reference: what a device that did nothing would send as its update. How far
            devices go from it is compared, and one that goes too far is left out. None
            where updates begin nowhere.
        gauge: numbers of what an upload has beside its update, by which devices are
            compared as well. None where honest devices may send any.

    Example:
        An exchange that averages one number of every device:

        >>> phase = Phase(
        ...     name="count",
        ...     steps=1,
        ...     broadcast=lambda server: server,
        ...     start=lambda downlink, private, data, key: downlink,
        ...     step=lambda carry, data, key: carry + 1,
        ...     finish=lambda carry, downlink, key: (Upload((carry,)), (), {}),
        ...     server=lambda server, mean, key: mean.update[0],
        ... )
        >>> phase.step(phase.start(phase.broadcast(1), (), None, None), None, None)
        2
    """

    name: str
    steps: int
    broadcast: Callable[[Server], Downlink]
    start: Callable[[Downlink, Private, DeviceData, RandomKey], Carry]
    step: Callable[[Carry, DeviceData, RandomKey], Carry]
    finish: Callable[[Carry, Downlink, RandomKey], tuple[Upload, Private, Info]]
    server: Callable[[Server, Upload, RandomKey], Server]
    receive: Callable[[Upload, Downlink], Upload] | None = None
    reference: Callable[[Downlink], tuple[PyTree, ...]] | None = None
    gauge: Callable[[PyTree, Downlink], tuple[PyTree, ...]] | None = None

    @property
    def is_compared(self) -> bool:
        """Whether what devices send is of about one size among honest ones."""
        return self.reference is not None or self.gauge is not None

    def decode_upload(self, upload: Upload, downlink: Downlink) -> Upload:
        """Return what the server averages of an upload."""
        return upload if self.receive is None else self.receive(upload, downlink)

    def deviations(self, upload: Upload, downlink: Downlink) -> tuple[PyTree, ...]:
        """Return how each variable of an upload differs from what an idle device sends.

        And the numbers beside them by which devices are compared.
        """
        ways: tuple[PyTree, ...] = ()
        if self.reference is not None:
            ways = tuple(map(tree.subtract, upload.update, self.reference(downlink)))
        if self.gauge is not None:
            ways += self.gauge(upload.beside, downlink)
        return ways


@runtime_checkable
class FederatedAlgorithm(Protocol):
    """Hyperparameters that know how to turn a problem into rounds.

    An implementation is a frozen dataclass registered as a pytree: numbers are leaves,
    so that changing them compiles nothing anew and a grid of them can be swept under
    one `vmap`; whatever shapes the program (numbers of steps, batch sizes) is static.
    """

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[Server, Private]:
        """Return the server's first state and what each device keeps at first."""

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the first round; none if it is like every other."""

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of every later round."""
