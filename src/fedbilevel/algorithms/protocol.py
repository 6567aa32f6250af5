"""The protocol of a federated algorithm: rounds of phases, each phase an exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float, PyTree

from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Server: TypeAlias = Any
"""The server's state; it has at least the fields `x` and `y`."""
Private: TypeAlias = PyTree
"""The state of a device between its rounds, never uploaded."""
Downlink: TypeAlias = PyTree
"""All data sent to a device in an exchange."""
Carry: TypeAlias = PyTree
"""A device's working state between two local steps."""
Info: TypeAlias = PyTree
"""Scalars about a device's work, averaged for the round's report."""


class Upload(NamedTuple):
    """All data that a device sends in an exchange.

    Attributes:
        update: updated variables, each a tree.
        beside: other numbers, such as votes, counts and measurements.
    """

    update: tuple[PyTree, ...]
    beside: PyTree = ()


class Shares(NamedTuple):
    """The weights of the devices behind a mean.

    Attributes:
        counted: sum of the shares of the devices whose uploads counted; 1 if all did.
        largest: largest share of a participant, counted or not.
    """

    counted: Float[Array, ""]
    largest: Float[Array, ""]


class Units(NamedTuple):
    """Units in which the values beside an update have a norm of about 1 at most.

    Differential privacy needs a bound of everything that depends on a device's data.

    Attributes:
        narrow: function from a device's values and the downlink to these units. Larger
            norms are clipped to 1.
        widen: function from the mean in these units, and the downlink, to the values
            that `Phase.server` reads.
    """

    narrow: Callable[[PyTree, Downlink], PyTree]
    widen: Callable[[PyTree, Downlink], PyTree]


class Beside(NamedTuple):
    """Limits of the values beside an update: no device must outweigh the others.

    Attributes:
        limit: function from a device's values and the downlink to values that honest
            devices may send. None if any numbers may be averaged.
        gauge: function from a device's values and the downlink to numbers by which
            devices are compared, as by the update. None if values are not compared.
        units: units of the values under differential privacy. None if they have no
            bound.
    """

    limit: Callable[[PyTree, Downlink], PyTree] | None = None
    gauge: Callable[[PyTree, Downlink], tuple[PyTree, ...]] | None = None
    units: Units | None = None


class Aggregation(NamedTuple):
    """The way from the uploads of an exchange to the upload that the server reads.

    Attributes:
        receive: function from an upload and the downlink to the upload that is
            averaged; it decodes what `finish` encoded. None if uploads are averaged
            unchanged.
        mean: function from the updates of all devices along a leading axis, their
            weights and the downlink to a robust mean update. The engine then stores all
            updates of an exchange. None for the weighted mean.
        is_sum: True if uploads are 32-bit integers, which the engine sums, each times
            the device's whole share, in place of a mean.
        release: function from the server's state, the mean upload, the shares of the
            devices and standard normal numbers of the upload's form to the upload that
            `Phase.server` reads: it adds the noise of differential privacy. A sum comes
            with numbers of no form. None without noise.
    """

    receive: Callable[[Upload, Downlink], Upload] | None = None
    mean: (
        Callable[
            [tuple[PyTree, ...], Float[Array, "devices"], Downlink],
            tuple[PyTree, ...],
        ]
        | None
    ) = None
    is_sum: bool = False
    release: Callable[[Server, Upload, Shares, Upload], Upload] | None = None


MEAN = Aggregation()
"""The weighted mean of the uploads as they are."""


class Phase(NamedTuple):
    """One exchange: the server broadcasts, devices work locally, the server averages.

    Every function is pure. `start`, `step` and `finish` see one device and never
    communicate; the engine loops over devices and steps.

    Attributes:
        name: name of the phase. A round may repeat a phase, as one object; two objects
            have two names.
        steps: number of local steps in this exchange.
        broadcast: function from the server's state to the downlink of every
            participant.
        start: function from the downlink and the private state to a device's initial
            working state.
        step: function that makes one local step.
        finish: function that returns the upload, the private state and the info.
        server: function from the weighted mean of the uploads to the server's next
            state; the key is for random choices of the server.
        reference: function from the downlink to the update of an idle device. Devices
            are compared by their distance from it, and a device too far from it is
            excluded. None if updates have no such reference.
        beside: limits of the values beside an update.
        aggregation: the mean or sum of the uploads.

    Example:
        An exchange that averages one number from every device:

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
    reference: Callable[[Downlink], tuple[PyTree, ...]] | None = None
    beside: Beside = Beside()
    aggregation: Aggregation = MEAN

    @property
    def is_compared(self) -> bool:
        """True if the engine compares the sizes of the devices' uploads."""
        return self.reference is not None or self.beside.gauge is not None

    @property
    def is_decoded(self) -> bool:
        """True if the server changes uploads before it averages them."""
        return not (self.aggregation.receive is None and self.beside.limit is None)

    def decode_upload(self, upload: Upload, downlink: Downlink) -> Upload:
        """Return an upload as the server averages it."""
        if self.aggregation.receive is not None:
            upload = self.aggregation.receive(upload, downlink)
        if self.beside.limit is not None:
            limited = self.beside.limit(upload.beside, downlink)
            upload = upload._replace(beside=limited)
        return upload

    def deviations(self, upload: Upload, downlink: Downlink) -> tuple[PyTree, ...]:
        """Return the differences between an upload and that of an idle device.

        The numbers of `Beside.gauge` follow the differences.
        """
        trees: tuple[PyTree, ...] = ()
        if self.reference is not None:
            trees = tuple(map(tree.subtract, upload.update, self.reference(downlink)))
        if self.beside.gauge is not None:
            trees += self.beside.gauge(upload.beside, downlink)
        return trees


@runtime_checkable
class FederatedAlgorithm(Protocol):
    """An algorithm: hyperparameters, and functions from a problem to phases.

    An implementation is a frozen dataclass registered as a pytree. Numbers are leaves,
    so changing them needs no compilation and a grid of them runs under one `vmap`;
    fields that shape the program (numbers of steps, batch sizes) are static.
    """

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[Server, Private]:
        """Return the initial states of the server and of each device."""

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the first round; () if it is like all others."""

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of every later round."""
