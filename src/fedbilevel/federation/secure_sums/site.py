"""A site's part of one secure sum."""

import hashlib
from collections.abc import Callable
from enum import IntEnum
from threading import Lock

import numpy as np
from jaxtyping import UInt32

from fedbilevel.federation.secure_sums import masks
from fedbilevel.federation.secure_sums.advertisement import (
    Advertisements,
    advertise,
    read_bundle,
)
from fedbilevel.federation.secure_sums.agreement import KeyPairs
from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.identity import Identity
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.secure_sums.second_sums import require_refusals
from fedbilevel.federation.secure_sums.secret import SEED, Secret, random_secret
from fedbilevel.federation.secure_sums.shares import Channel, Shares, split
from fedbilevel.federation.secure_sums.survivors import (
    Survivors,
    check_confirmations,
    encode_confirmation,
    read_survivors,
)
from fedbilevel.federation.transport import RefusedError, readable

COMMITMENT = "commitment"
"""Entry that no site name can be: see `share`."""


class Request(IntEnum):
    """The requests to a site, in their order.

    Example:
        >>> Request.SHARE.name
        'SHARE'
    """

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONFIRM = 3
    UNMASK = 4


class SecureSite:
    """The state of a site in one exchange, for one vector.

    Each method answers one request. The same request again gets the same bytes; another
    one of the same type is refused. A refused request changes nothing.

    Args:
        identity: certificate and private key of the site.
        context: the exchange, as the site itself knows it.
        refuses_second_sums: whether the site never signs two sums of one exchange, and
            participates only if enough others do neither (`second_sums`). The caller
            keeps the promise: an object of this class knows one attempt only.

    Raises:
        ValueError: if the site is not in the roster.

    Example:
        >>> from fedbilevel.federation.secure_sums.identity import self_signed
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> site = SecureSite(self_signed("north"), context)
        >>> site
        SecureSite('north', run 'a1', round 3, exchange 0, 0 requests answered)
        >>> site.advertise() == site.advertise()
        True
        >>> site.share(b"anything")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the message was damaged in transit
    """

    def __init__(
        self, identity: Identity, context: Context, *, refuses_second_sums: bool = True
    ) -> None:
        if identity.name not in context.roster:
            raise ValueError(
                f'The roster {list(context.roster)} does not have "{identity.name}", '
                "the name in this site's certificate. Add it, or use the right kit."
            )
        self._identity = identity
        self._context = context
        self._refuses_second_sums = refuses_second_sums
        # Two requests at once must not both count as the first of their type.
        self._lock = Lock()
        self._answers: list[tuple[bytes, bytes]] = []
        self._keys: KeyPairs | None = KeyPairs.new()
        self._seed: Secret | None = random_secret(SEED)
        self._own: bytes = b""
        self._public = self._keys.public
        self._advertisements = Advertisements({}, b"")
        self._shares: dict[str, Shares] = {}
        self._survivors = Survivors((), ())
        # A copy: a digest of 10 MB took 25 to 50 ms, more than all masks of 4 sites.
        self._vector: UInt32[np.ndarray, "size"] | None = None

    def __repr__(self) -> str:
        context = self._context
        return (
            f"SecureSite({self._identity.name!r}, run {context.run!r}, round "
            f"{context.round_number}, exchange {context.exchange}, "
            f"{len(self._answers)} requests answered)"
        )

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites of the sum, once this site has signed them; () before."""
        return self._survivors.names

    def advertise(self) -> bytes:
        """Return this site's signed public keys."""

        def answer() -> bytes:
            self._own = advertise(
                self._identity,
                self._context,
                self._public,
                refuses_second_sums=self._refuses_second_sums,
            )
            return self._own

        return self._answer(Request.ADVERTISE, b"", answer)

    def share(self, roster: bytes) -> bytes:
        """Return encrypted shares of this site's secrets for all other sites.

        Args:
            roster: the server's message with all sites' public keys.

        Raises:
            RefusedError: if a key or a signature is not valid, or sites are missing.
        """
        return self._answer(Request.SHARE, roster, lambda: self._share(roster))

    def mask(self, delivery: bytes, vector: UInt32[np.ndarray, "size"]) -> bytes:
        """Return the vector plus all masks.

        Args:
            delivery: the server's message with the shares of the other sites.
            vector: vector of this site.

        Raises:
            RefusedError: if shares are not valid or missing, or this is a second,
                different vector.
            TypeError: if the vector is not one of uint32.
        """
        if vector.dtype != np.uint32 or vector.ndim != 1:
            raise TypeError(
                f"The vector is {vector.dtype}{list(vector.shape)}. Pass a vector of "
                "uint32: quantise the upload first."
            )
        return self._answer(
            Request.MASK, delivery, lambda: self._mask(delivery, vector), vector
        )

    def confirm(self, survivors: bytes) -> bytes:
        """Return this site's signature of the list of survivors.

        Args:
            survivors: the server's message with the survivors' names.

        Raises:
            RefusedError: if the list has too few sites, or not this one.
        """
        return self._answer(
            Request.CONFIRM, survivors, lambda: self._confirm(survivors)
        )

    def unmask(self, confirmations: bytes) -> bytes:
        """Return one share for each site: of the seed or of the mask key, not both.

        Args:
            confirmations: the server's message with the sites' signatures.

        Raises:
            RefusedError: if fewer sites than the threshold signed the same survivors.
        """
        return self._answer(
            Request.UNMASK, confirmations, lambda: self._unmask(confirmations)
        )

    def _answer(
        self,
        request: Request,
        message: bytes,
        answer: Callable[[], bytes],
        vector: UInt32[np.ndarray, "size"] | None = None,
    ) -> bytes:
        with self._lock:
            digest = hashlib.sha256(message).digest()
            answered = len(self._answers)
            if request < answered:
                earlier, reply = self._answers[request]
                # The masks hide one vector only: the difference of two uploads with
                # the same masks is the difference of the vectors.
                if digest == earlier and (vector is None or self._is_same(vector)):
                    return reply
                raise RefusedError(
                    f"this site has already answered another {request.name.lower()} "
                    "request of this exchange; a second answer could reveal its "
                    "vector: start a new exchange"
                )
            if request > answered:
                raise RefusedError(
                    f"the request {request.name.lower()} came before "
                    f"{Request(answered).name.lower()}; send the requests of a secure "
                    "sum in their order"
                )
            reply = answer()
            self._answers.append((digest, reply))
            return reply

    def _is_same(self, vector: UInt32[np.ndarray, "size"]) -> bool:
        return self._vector is not None and np.array_equal(vector, self._vector)

    def _share(self, roster: bytes) -> bytes:
        context, name = self._context, self._identity.name
        advertisements, messages = read_bundle(roster, context, self._identity.root)
        if messages.get(name) != self._own:
            raise RefusedError(
                f'the server did not send back the keys of this site, "{readable(name)}'
                '", unchanged; check who operates the server, and start a new exchange'
            )
        if self._refuses_second_sums:
            require_refusals(context, advertisements)
        keys, seed = self._secrets
        count = len(context.roster)
        pairs = zip(
            split(keys.mask_seed, context.threshold, count),
            split(seed, context.threshold, count),
            strict=True,
        )
        shares = dict(zip(context.roster, map(Shares._make, pairs), strict=True))
        digest = advertisements.transcript
        entries = {COMMITMENT: field(masks.commitment(seed, digest, name))}
        for peer, advertisement in advertisements.by_name.items():
            if peer != name:
                public = advertisement.keys.encryption
                channel = Channel(keys.encryption, public, digest, name, peer)
                # A site may be called like the entry of the commitment.
                entries[f":{peer}"] = field(channel.encrypt(shares[peer]))
        message = seal(PacketType.SHARES, context, entries)
        self._advertisements = advertisements
        self._shares = {name: shares[name]}
        return message

    def _mask(self, delivery: bytes, vector: UInt32[np.ndarray, "size"]) -> bytes:
        context, name = self._context, self._identity.name
        keys, seed = self._secrets
        by_name, digest = self._advertisements
        encrypted = unseal(delivery, PacketType.DELIVERY, context)
        strangers = [each for each in encrypted if each not in by_name or each == name]
        if strangers:
            raise RefusedError(
                f'the server sent shares of "{readable(strangers[0][:64])}", whose '
                "keys it did not send before; start a new exchange"
            )
        if len(encrypted) + 1 < context.threshold:
            raise RefusedError(
                f"{len(encrypted) + 1} sites have shared their secrets, but "
                f"{context.threshold} of {len(context.roster)} are required; start a "
                "new exchange when more sites are connected"
            )
        shares = dict(self._shares)
        for peer, content in encrypted.items():
            public = by_name[peer].keys.encryption
            channel = Channel(keys.encryption, public, digest, peer, name)
            shares[peer] = channel.decrypt(content.tobytes())
        # Always a copy: the caller's vector must not become the upload.
        total, private = vector.astype(masks.WORD), keys.mask
        masks.add_mask(total, masks.self_key(seed, digest, name))
        for peer in encrypted:
            public = by_name[peer].keys.mask
            key = masks.pair_key(private, public, digest, name, peer)
            masks.add_mask(total, key, subtract=masks.is_subtracted(name, peer))
        message = seal(PacketType.MASKED, context, {"vector": total.view(np.uint8)})
        sharers = tuple(each for each in context.roster if each in shares)
        self._shares = shares
        self._vector = vector.copy()
        self._survivors = Survivors((), sharers)
        return message

    def _confirm(self, message: bytes) -> bytes:
        context, identity = self._context, self._identity
        sharers = self._survivors.sharers
        survivors = read_survivors(message, context, identity.name, sharers)
        digest = self._advertisements.transcript
        confirmation = encode_confirmation(identity, context, survivors, digest)
        self._survivors = survivors
        return confirmation

    def _unmask(self, message: bytes) -> bytes:
        survivors = self._survivors
        check_confirmations(message, self._context, survivors, self._advertisements)
        entries = {
            name: field(
                shares.seed.content
                if name in survivors.names
                else shares.mask_seed.content
            )
            for name, shares in self._shares.items()
        }
        reply = seal(PacketType.REVEALED, self._context, entries)
        # No later request needs the secrets. The answers stay, for repeated requests.
        self._keys = self._seed = self._vector = None
        self._shares = {}
        return reply

    @property
    def _secrets(self) -> tuple[KeyPairs, Secret]:
        if self._keys is None or self._seed is None:
            raise RefusedError("this exchange has ended; start a new exchange")
        return self._keys, self._seed
