"""What a federated algorithm is: rounds made of phases, a phase being one exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import PyTree

from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Server: TypeAlias = Any
"""The server's state; it has at least the fields `x` and `y`."""
Private: TypeAlias = PyTree
"""What stays on a device between the rounds it takes part in."""
Downlink: TypeAlias = PyTree
"""All that reaches a device in an exchange."""
Uplink: TypeAlias = PyTree
"""All that leaves a device in an exchange."""
Decoded: TypeAlias = PyTree
"""An upload as the server averages it: the uplink itself unless it was encoded."""
Carry: TypeAlias = PyTree
"""A device's working state between two local steps."""
Info: TypeAlias = PyTree
"""Scalars about a device's work, averaged for the round's report."""


class Phase(NamedTuple):
    """One exchange: the server broadcasts, devices work alone, the server averages.

    Every function is pure. `start`, `step` and `finish` see one device and never
    communicate; how devices and steps are looped over is the engine's affair.

    Attributes:
        steps: local steps in this exchange.
        broadcast: what the server sends to every participating device.
        start: a device's first working state, from what it received and kept.
        step: one local step.
        finish: what the device uploads, what it keeps, and what it reports.
        server: the server's next state, from the weighted mean of the uploads; the key
            is for draws of its own.
        receive: what the server averages of one upload; decodes what `finish` encoded.
        travel: the way that each variable of such an upload has gone from what was
            sent, by which one that goes too far is known. None where honest devices may
            send numbers of any size.

    Example:
        An exchange that averages one number of every device:

        >>> phase = Phase(
        ...     steps=1,
        ...     broadcast=lambda server: server,
        ...     start=lambda downlink, private, data, key: downlink,
        ...     step=lambda carry, data, key: carry + 1,
        ...     finish=lambda carry, downlink, key: (carry, (), {}),
        ...     server=lambda server, mean, key: mean,
        ... )
        >>> phase.step(phase.start(phase.broadcast(1), (), None, None), None, None)
        2
    """

    steps: int
    broadcast: Callable[[Server], Downlink]
    start: Callable[[Downlink, Private, DeviceData, RandomKey], Carry]
    step: Callable[[Carry, DeviceData, RandomKey], Carry]
    finish: Callable[[Carry, Downlink, RandomKey], tuple[Uplink, Private, Info]]
    server: Callable[[Server, Decoded, RandomKey], Server]
    receive: Callable[[Uplink], Decoded] = lambda uplink: uplink
    travel: Callable[[Decoded, Downlink], tuple[PyTree, ...]] | None = None


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
