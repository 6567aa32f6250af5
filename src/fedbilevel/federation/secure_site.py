"""A site's answers to the requests of secure exchanges."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import UInt32

from fedbilevel.algorithms.protocol import Upload
from fedbilevel.federation.messages import Task
from fedbilevel.federation.secure_messages import SecureMessage, binding_of
from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.identity import Identity
from fedbilevel.federation.secure_sums.site import Request, SecureSite
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.sum_record import SumRecord
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.transforms.fixed_point import NOT_FINITE


class Terms(NamedTuple):
    """The conditions under which a site joins secure sums.

    Attributes:
        identity: certificate and private key of the site.
        roster: names of the sites of the job; None to accept any certified site.
        rules: rules of the site's operator.
        fewest: smallest number of survivors, which `DeviceNoise` needs.
    """

    identity: Identity
    roster: Sequence[str] | None
    rules: SiteRules
    fewest: int


class SecureAnswers:
    """A site's part of the secure exchanges of all runs: one exchange at a time.

    The first request brings the task. The computation begins before its answer and ends
    with the request `mask`, so that keys are agreed on meanwhile.

    Args:
        terms: conditions of the site.
        begin: function that begins the work of a task message. The work has the field
            `digest`, of all that the upload follows from.
        finish: function that waits for the work and returns the upload.
        sums: record of the sums that the site has signed.
    """

    def __init__(
        self,
        terms: Terms,
        begin: Callable[[bytes], Any],
        finish: Callable[[Any], Upload],
        sums: SumRecord,
    ) -> None:
        self._terms, self._begin, self._finish = terms, begin, finish
        self._sums = sums
        self._current: _Exchange | None = None

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request.

        Raises:
            RefusedError: if the request is not valid, or the site's rules forbid it.
        """
        request = SecureMessage.decode(message)
        if request.step == Request.ADVERTISE:
            exchange = self._open(request)
        else:
            exchange = self._of(request)
        packet = self._packet(exchange, request)
        return SecureMessage(request.step, request.attempt, packet).encode()

    def _of(self, request: SecureMessage) -> "_Exchange":
        exchange = self._current
        if exchange is None or exchange.attempt != request.attempt:
            raise RefusedError(
                f"the request {request.name} belongs to an exchange that this site has "
                "not begun, or whose keys it lost when it was restarted; start a new "
                "exchange"
            )
        return exchange

    def _open(self, request: SecureMessage) -> "_Exchange":
        exchange = self._current
        digest = hashlib.blake2b(request.task, digest_size=32).digest()
        if exchange is not None and exchange.attempt == request.attempt:
            if (exchange.roster, exchange.digest) != (dict(request.roster), digest):
                raise RefusedError(
                    "the server sent another task or other weights for an exchange "
                    "that has begun; start a new exchange"
                )
            return exchange
        task = Task.decode(request.task)
        self._check_roster(request.roster)
        try:
            context = Context(
                task.run,
                int(task.moment[0]),
                int(task.moment[1]),
                tuple(request.roster),
                binding_of(request.attempt, request.roster, request.task),
            )
            secure = SecureSite(
                self._terms.identity,
                context,
                refuses_second_sums=self._terms.rules.most_second_sums == 0,
            )
        except ValueError as error:
            raise RefusedError(str(error)) from None
        # A refused task leaves the exchange before it unchanged.
        work = self._begin(request.task)
        self._current = _Exchange(
            request.attempt, dict(request.roster), digest, task, work, secure
        )
        return self._current

    def _check_roster(self, roster: Any) -> None:
        own, terms = self._terms.identity.name, self._terms
        if own not in roster:
            raise RefusedError(
                f'the roster of the exchange does not have "{readable(own)}", the name '
                "in this site's certificate; use the right kit"
            )
        least = terms.rules.smallest_roster
        if len(roster) < least:
            raise RefusedError(
                f"the exchange has {len(roster)} sites, but this site requires {least} "
                f"(smallest_roster in its local/{RULES}). Let more sites participate, "
                "or ask its operator to lower smallest_roster"
            )
        if terms.roster is not None:
            strangers = [name for name in roster if name not in terms.roster]
            if strangers:
                raise RefusedError(
                    f'the roster of the exchange has "{readable(strangers[0][:64])}", '
                    "which is not a site of the job; check who operates the server"
                )
        # The sum modulo the shares of the others has the levels of one site alone, and
        # each site adds the same noise, which its share multiplies. Rehearsals have
        # nothing to hide.
        protects = terms.fewest > 1 or not terms.rules.simulated_draws
        if protects and len(set(roster.values())) > 1:
            shares = sorted(set(roster.values()))
            raise RefusedError(
                f"the sites have {shares[0]} to {shares[-1]} units of weight, but a "
                "sum with unequal weights can show single uploads, and DeviceNoise "
                "needs equal shares; omit weights and weight_by_size, and give every "
                "site examples of both losses"
            )
        # Otherwise the sum would be little more than this site's own upload.
        if 2 * roster[own] > sum(roster.values()):
            raise RefusedError(
                f"this site has {roster[own]} of {sum(roster.values())} units of "
                "weight, more than half, so that the sum would show its upload; give "
                "it a smaller weight"
            )

    def _packet(self, exchange: "_Exchange", request: SecureMessage) -> bytes:
        secure = exchange.secure
        match Request(request.step):
            case Request.ADVERTISE:
                return secure.advertise()
            case Request.SHARE:
                return secure.share(request.packet)
            case Request.MASK:
                return secure.mask(request.packet, self._vector(exchange))
            case Request.CONFIRM:
                confirmation = secure.confirm(request.packet)
                self._admit(exchange)
                return confirmation
            case Request.UNMASK:
                # A server that skips the request confirm is refused by the protocol.
                return secure.unmask(request.packet)

    def _vector(self, exchange: "_Exchange") -> UInt32[np.ndarray, "size"]:
        if exchange.vector is None:
            upload = self._finish(exchange.work)
            share = exchange.roster[self._terms.identity.name]
            exchange.vector = vector_of(upload, share)
        return exchange.vector

    def _admit(self, exchange: "_Exchange") -> None:
        """Record a sum; raise if the site's rules forbid it."""
        survivors, fewest = exchange.secure.survivors, self._terms.fewest
        if len(survivors) < fewest:
            raise RefusedError(
                f"the sum has {len(survivors)} updates, but DeviceNoise adds the noise "
                f"of {fewest}; wait until more sites are connected"
            )
        task, shares = exchange.task, exchange.roster
        self._sums.admit(
            task.run,
            task.moment,
            exchange.work.digest,
            {name: shares[name] for name in survivors},
        )


@dataclass
class _Exchange:
    """An exchange that a site has begun.

    Attributes:
        attempt: name of the attempt.
        roster: whole share of each site.
        digest: digest of the task.
        task: the task.
        work: work that has begun.
        secure: the site's part of the protocol.
        vector: vector, once the work has ended.
    """

    attempt: bytes
    roster: dict[str, int]
    digest: bytes
    task: Task
    work: Any
    secure: SecureSite
    vector: UInt32[np.ndarray, "size"] | None = None


def vector_of(upload: Upload, share: int) -> UInt32[np.ndarray, "size"]:
    """Return the levels of an upload times the site's whole share, modulo 2^32.

    Raises:
        RefusedError: if the upload is not finite, or not of levels.

    Example:
        >>> vector_of(Upload((np.array([3, -1], np.int32),)), share=2)
        array([         6, 4294967294], dtype=uint32)
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(upload)]
    if not leaves or any(leaf.dtype != np.int32 for leaf in leaves):
        raise RefusedError(
            "the server requests a secure sum, but the algorithm's uploads are not "
            "integers; add FixedPoint to its transforms (integer_bits in "
            "[transforms])"
        )
    levels = np.concatenate([leaf.ravel() for leaf in leaves])
    if np.any(levels == NOT_FINITE):
        raise RefusedError("the upload is not finite; lower the learning rate")
    return levels.view(np.uint32) * np.uint32(share)
