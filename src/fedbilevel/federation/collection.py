"""The collection of an exchange's uploads, one by one or as a secure sum."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedbilevel.algorithms.protocol import Server
from fedbilevel.engines.mean import WeightedMean
from fedbilevel.federation.replies import ReplyCollector

if TYPE_CHECKING:
    from fedbilevel.federation.secure_exchange import SecureExchange

MessagesTo = Callable[[Mapping[str, int], bool], Mapping[str, bytes]]
"""A function from device numbers by name to the devices' tasks. Its second argument is
whether the devices restart from their first state."""


class Candidates(NamedTuple):
    """The participants of an exchange, by name.

    Attributes:
        contacted: devices to contact.
        spare: devices that are skipped, unless the exchange would fail without them.
    """

    contacted: Mapping[str, int]
    spare: Mapping[str, int]


class Collected(NamedTuple):
    """The uploads of an exchange.

    Attributes:
        mean: function that returns the mean of the accepted uploads, or checks and
            returns their sum.
        refusal: reason why there is no mean; empty if there is one.
        counted: devices whose uploads are in the mean.
        contacted: devices that were contacted.
        missing: reason for each contacted device whose upload does not count.
        heard: contacted devices, without those that might still have answered when
            the exchange closed early.
        lost: devices that have lost their state.
        bytes_down: bytes of all messages to devices.
        bytes_up: bytes of all replies.
    """

    mean: Callable[[], WeightedMean]
    refusal: str
    counted: Collection[int]
    contacted: Mapping[str, int]
    missing: Mapping[int, str]
    heard: Sequence[int]
    lost: Collection[int]
    bytes_down: int
    bytes_up: int


def collect_uploads(
    collector: ReplyCollector,
    collect: Callable[[Mapping[str, bytes]], bool],
    candidates: Candidates,
    messages_to: MessagesTo,
    quorum: int,
    server: Server,
) -> Collected:
    """Return the uploads of devices, each of which the server reads.

    Args:
        collector: collector of the contacted devices' replies.
        collect: function that sends messages and collects the replies; it returns
            whether the exchange closed before its timeout.
        candidates: participants.
        messages_to: function that returns tasks.
        quorum: smallest number of accepted uploads.
        server: state of the server.
    """
    contacted, bytes_down = dict(candidates.contacted), 0

    def send(devices: Mapping[str, int], from_start: bool = False) -> bool:
        nonlocal bytes_down
        messages = messages_to(devices, from_start)
        bytes_down += sum(map(len, messages.values()))
        return collect(messages)

    closed = send(contacted)
    if collector.near < quorum and candidates.spare:
        # Skipped devices may be back, and without them this exchange fails.
        contacted |= candidates.spare
        collector.expect(candidates.spare)
        closed = send(candidates.spare)
    lost = set(collector.lost)
    if collector.near < quorum and lost:
        # Without a restart of these devices, this exchange would fail every time.
        names = {device: name for name, device in contacted.items()}
        restarting = {names[device]: device for device in sorted(lost)}
        collector.expect(restarting)
        closed = send(restarting, from_start=True)
    unheard = collector.close() if closed else []
    collector.settle()
    missing = {device: why.reason for device, why in collector.missing.items()}
    counted = collector.counted
    refusal = f"{len(counted)} of {quorum} required uploads were accepted"
    return Collected(
        lambda: collector.mean(server),
        refusal if len(counted) < quorum else "",
        counted,
        contacted,
        missing,
        [device for device in contacted.values() if device not in unheard],
        lost,
        bytes_down,
        collector.bytes_up,
    )


def collect_sum(
    exchange: "SecureExchange",
    candidates: Candidates,
    messages_to: MessagesTo,
    weights: Mapping[int, float],
    largest_level: int,
) -> Collected:
    """Return the sum of the uploads of devices, which is all that the server reads.

    Args:
        exchange: secure exchange with the participants.
        candidates: participants.
        messages_to: function that returns tasks.
        weights: weights of the devices.
        largest_level: largest level of one device.
    """
    # Imported here: servers of plain exchanges do not need the packages of the extra.
    from fedbilevel.federation.secure_sums.server import TooFewSitesError
    from fedbilevel.federation.transport import FailureCause

    contacted = dict(candidates.contacted)
    everybody = {**contacted, **candidates.spare}
    exchange.advertise(messages_to(contacted, False))
    if exchange.near < exchange.fewest and candidates.spare:
        contacted = everybody
        exchange.advertise(messages_to(candidates.spare, False))
    lost = exchange.lost
    if exchange.near < exchange.fewest and lost:
        restarting = {name: contacted[name] for name in sorted(lost)}
        exchange.advertise(messages_to(restarting, True))
    survivors: Collection[str] = ()
    refusal = ""
    total = None
    try:
        total = exchange.sum()
        survivors = total.survivors
    except TooFewSitesError as error:
        refusal = (
            f"{error.count} of {exchange.fewest} required sites answered the request "
            f"{error.request} of the secure sum"
        )
    reasons = exchange.reasons()
    absent = [name for name in contacted if name not in survivors]
    if refusal:
        # A site that answered every request is not the reason why there is no sum.
        absent = [name for name in absent if name in reasons]
    unheard = {
        name
        for name, failure in exchange.failures.items()
        if failure.cause is FailureCause.NOT_AWAITED
    }

    def mean() -> WeightedMean:
        assert total is not None, "called without a refusal only"
        weight = sum(weights[contacted[name]] for name in survivors)
        return exchange.mean(total, weight, largest_level)

    return Collected(
        mean,
        refusal,
        [contacted[name] for name in survivors],
        contacted,
        {contacted[name]: reasons.get(name, "did not answer") for name in absent},
        [device for name, device in contacted.items() if name not in unheard],
        [contacted[name] for name in lost],
        exchange.bytes_down,
        exchange.bytes_up,
    )
