"""One exchange of a federation whose server learns only the sum of the uploads."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cryptography import x509

from fedbilevel.engines.mean import WeightedMean
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.replies import (
    NOT_AWAITED,
    Form,
    invalid_answer,
    message_of,
)
from fedbilevel.federation.reply_window import ReplyWindow
from fedbilevel.federation.secure_messages import (
    ATTEMPT_BYTES,
    STEPS,
    SecureMessage,
    binding_of,
)
from fedbilevel.federation.secure_sums.context import Context, threshold
from fedbilevel.federation.secure_sums.server import (
    SecureServer,
    SecureSum,
    SecureSumError,
    TooFewSitesError,
)
from fedbilevel.federation.secure_sums.site import Request
from fedbilevel.federation.transport import (
    Failure,
    FailureCause,
    RefusedError,
    Reply,
    Transport,
)


class Schedule(NamedTuple):
    """The times and numbers of an exchange.

    Attributes:
        timeout: seconds that each request waits for answers.
        straggler_factor: multiple of the time in which half of the sites answered,
            after which a request is not awaited any longer; None to wait.
        fewest: smallest number of survivors.
        clock: function that returns the seconds of a monotonic clock.
    """

    timeout: float
    straggler_factor: float | None
    fewest: int
    clock: Callable[[], float] = time.monotonic


class Place(NamedTuple):
    """The place of an exchange.

    Attributes:
        run: name of the run.
        moment: round and exchange.
    """

    run: str
    moment: Moment


class Before(NamedTuple):
    """Functions called before two of the requests.

    Attributes:
        confirm: function of the survivors, called before sites sign them.
        unmask: function called before the request that lets the server compute the sum.
    """

    confirm: Callable[[Iterable[str]], None] = lambda names: None
    unmask: Callable[[], None] = lambda: None


class SecureExchange:
    """The server's part of one exchange, over any transport.

    A site that does not answer a request in time, or not validly, is excluded from the
    following requests. It counts if its masked vector had arrived by then.

    Args:
        transport: connection to the sites.
        root: certificate of the root authority of all sites.
        place: run, round and exchange.
        roster: whole share of each participant, by name.
        form: shapes and types of the uploads.
        schedule: times and numbers of the exchange.
        before: functions called before requests.

    Attributes:
        failures: failure of each site that did not answer a request.
        bytes_down: bytes of all requests.
        bytes_up: bytes of all answers.
        seconds: seconds of each request, with the server's own work after it.
    """

    def __init__(
        self,
        transport: Transport,
        root: x509.Certificate,
        place: Place,
        roster: Mapping[str, int],
        form: Form,
        schedule: Schedule,
        before: Before = Before(),
    ) -> None:
        self._transport, self._root = transport, root
        self._place, self._roster = place, dict(roster)
        self._form, self._schedule, self._before = form, schedule, before
        self._attempt = secrets.token_bytes(ATTEMPT_BYTES)
        self._server: SecureServer | None = None
        self._keys: dict[str, bytes] = {}
        self.failures: dict[str, Failure] = {}
        self.bytes_down = self.bytes_up = 0
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @property
    def fewest(self) -> int:
        """The smallest number of sites with which the exchange continues."""
        # Below the protocol's threshold there is no sum.
        return max(self._schedule.fewest, threshold(len(self._roster)))

    @property
    def near(self) -> int:
        """The number of sites that have sent their keys."""
        return len(self._keys)

    @property
    def lost(self) -> list[str]:
        """The sites that have lost their state."""
        return [
            name
            for name, failure in self.failures.items()
            if failure.cause is FailureCause.LOST_STATE
        ]

    def advertise(self, tasks: Mapping[str, bytes]) -> None:
        """Send tasks to sites, and collect their keys; call it again for more sites.

        Args:
            tasks: message with the task of each site.
        """
        if not tasks:
            return
        with self._timed(0):
            if self._server is None:
                self._server = self._new_server(next(iter(tasks.values())))
            for name in tasks:
                self.failures.pop(name, None)
            whole: dict[bytes, bytes] = {}
            for task in tasks.values():
                # Stateless devices share one message.
                if task not in whole:
                    message = SecureMessage(
                        0, self._attempt, roster=self._roster, task=task
                    )
                    whole[task] = message.encode()
            messages = {name: whole[task] for name, task in tasks.items()}
            self._keys |= self._request(0, messages, len(self._keys))

    def sum(self) -> SecureSum:
        """Return the sum over the survivors.

        Raises:
            TooFewSitesError: if too few sites are left.
            SecureSumError: if too many shares are wrong.
        """
        server = self._server
        assert server is not None, "call advertise first"
        packets: Mapping[str, bytes] = self._keys
        collects = (
            server.collect_keys,
            server.collect_shares,
            server.collect_masked,
            server.collect_confirmations,
        )
        for step, collect in enumerate(collects, start=1):
            with self._timed(step - 1):
                packets = collect(packets)
                # Before the request confirm, no mask can be removed.
                if step <= Request.CONFIRM:
                    self._require(len(packets), STEPS[step - 1])
            if step == Request.CONFIRM:
                self._before.confirm(packets)
            if step == Request.UNMASK:
                self._before.unmask()
            with self._timed(step):
                messages = self._wrapped(step, packets)
                packets = self._request(step, messages)
        with self._timed(4):
            return server.collect_revealed(packets)

    def reasons(self) -> dict[str, str]:
        """Return the reason of each site that failed, by name."""
        known = self._server.failures if self._server is not None else {}
        return {
            **{name: reason for name, reason in known.items() if reason != "no reply"},
            **{name: failure.reason for name, failure in self.failures.items()},
        }

    def mean(self, total: SecureSum, weight: float, largest_level: int) -> WeightedMean:
        """Return a sum in the form of the engines' sums, once it is checked.

        Args:
            total: the sum.
            weight: sum of the survivors' weights.
            largest_level: largest level of one site.

        Raises:
            SecureSumError: if the sum is not one of levels within their bounds.
        """
        numbers = total.total.view(np.int32)
        shares = sum(self._roster[name] for name in total.survivors)
        leaves, structure = jax.tree.flatten(self._form.received)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = [
            part.reshape(leaf.shape)
            for part, leaf in zip(np.split(numbers, ends), leaves, strict=True)
        ]
        upload = jax.tree.unflatten(structure, parts)
        counted = int(upload.beside.ones)
        # int64, since the magnitude of -2³¹ does not fit 32 bits.
        largest = int(np.max(np.abs(numbers.astype(np.int64)), initial=0))
        most = max(largest_level, 1) * shares
        if counted != shares or largest > most:
            raise SecureSumError(
                f"{self._label}: the sum over {len(total.survivors)} sites has "
                f"{counted} units of weight, expected {shares}, and numbers up to "
                f"{largest}, expected at most {most}. A site sent a vector that is not "
                "of clipped levels, or runs another version. The server cannot see "
                f"which one: sites {', '.join(total.survivors)}. Check their "
                "versions, and run without one of them after another."
            )
        total = jax.tree.map(jnp.asarray, upload)
        return WeightedMean(jnp.asarray(weight, float), (), (), {}, total)

    @property
    def _label(self) -> str:
        return f"Round {self._place.moment[0]}, exchange {self._place.moment[1]}"

    def _require(self, count: int, request: str) -> None:
        if count < self.fewest:
            raise TooFewSitesError(
                f"{self._label}: {count} of {self.fewest} required sites answered the "
                f"request {request}, so no mask was removed. Wait for more sites.",
                count,
                request,
            )

    def _new_server(self, task: bytes) -> SecureServer:
        context = Context(
            self._place.run,
            int(self._place.moment[0]),
            int(self._place.moment[1]),
            tuple(self._roster),
            binding_of(self._attempt, self._roster, task),
        )
        leaves = jax.tree.leaves(self._form.received)
        return SecureServer(context, self._root, sum(leaf.size for leaf in leaves))

    def _wrapped(self, step: int, packets: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return requests; sites with one packet share one message."""
        whole: dict[int, bytes] = {}
        for packet in packets.values():
            if id(packet) not in whole:
                message = SecureMessage(step, self._attempt, packet)
                whole[id(packet)] = message.encode()
        return {name: whole[id(packet)] for name, packet in packets.items()}

    def _request(
        self, step: int, messages: Mapping[str, bytes], earlier: int = 0
    ) -> dict[str, bytes]:
        """Send requests; return the valid answers that arrive in time."""
        schedule = self._schedule
        self.bytes_down += sum(map(len, messages.values()))
        window = ReplyWindow(
            schedule.timeout, schedule.straggler_factor, schedule.clock
        )
        awaited = dict.fromkeys(messages)
        packets: dict[str, bytes] = {}
        for reply in self._transport.exchange(messages, window.left):
            self.bytes_up += len(reply.message or b"")
            if reply.device not in awaited:
                continue
            packet, failure = self._read(reply, step)
            if packet is not None:
                packets[reply.device] = packet
                window.accept()
                self.failures.pop(reply.device, None)
            if failure is not None:
                self.failures[reply.device] = failure
            may_follow = failure is None or failure.cause is FailureCause.LATE
            if packet is not None or not may_follow:
                del awaited[reply.device]
            window.update(len(awaited), max(1, self.fewest - earlier))
            if not awaited or window.left() <= 0:
                break
        late = Failure(
            FailureCause.LATE,
            f"did not answer the request {STEPS[step]} of the secure sum in time",
        )
        missing = NOT_AWAITED if window.closed_early else late
        for name in awaited:
            self.failures.setdefault(name, missing)
        return packets

    def _read(self, reply: Reply, step: int) -> tuple[bytes | None, Failure | None]:
        """Return the packet of a reply, or its failure.

        An answer to another request has neither: that to this one may still arrive.
        """
        message = message_of(reply)
        if isinstance(message, Failure):
            return None, message
        try:
            answer = SecureMessage.decode(message)
        except RefusedError as error:
            return None, invalid_answer(error)
        if (answer.attempt, answer.step) != (self._attempt, step):
            return None, None
        return answer.packet, None

    @contextmanager
    def _timed(self, step: int) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[STEPS[step]] += time.perf_counter() - began
