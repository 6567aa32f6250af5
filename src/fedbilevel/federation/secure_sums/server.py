"""The server's part of one secure sum: it relays messages and removes masks."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from cryptography import x509
from jaxtyping import UInt8, UInt32

from fedbilevel.federation.secure_sums import masks
from fedbilevel.federation.secure_sums.advertisement import (
    Advertisements,
    bundle,
    read_advertisement,
    transcript,
)
from fedbilevel.federation.secure_sums.agreement import mask_key, public_key
from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.secure_sums.secret import SEED, SIZE, Secret
from fedbilevel.federation.secure_sums.shares import ENCRYPTED, combine
from fedbilevel.federation.secure_sums.site import COMMITMENT, Request
from fedbilevel.federation.secure_sums.survivors import (
    Survivors,
    encode_confirmations,
    encode_survivors,
    read_confirmation,
)
from fedbilevel.federation.transport import RefusedError, readable

Content = TypeVar("Content")


class SecureSumError(RuntimeError):
    """A secure sum that cannot be computed; nothing but the sum could be revealed.

    Example:
        >>> issubclass(SecureSumError, RuntimeError)
        True
    """


class TooFewSitesError(SecureSumError):
    """Fewer sites answered a request than the sum needs.

    Attributes:
        count: number of sites that answered.
        request: name of the request.

    Example:
        >>> TooFewSitesError("1 site answered", 1, "share").request
        'share'
    """

    def __init__(self, reason: str, count: int, request: str) -> None:
        super().__init__(reason)
        self.count, self.request = count, request


class SecureSum(NamedTuple):
    """The result of a secure sum.

    Attributes:
        total: sum of the survivors' vectors modulo 2^32.
        survivors: names of the sites in the sum, in order.
    """

    total: UInt32[np.ndarray, "size"]
    survivors: tuple[str, ...]


class SharedSecrets(NamedTuple):
    """The encrypted shares of a site, and the digest of its seed.

    Attributes:
        commitment: digest of the seed.
        encrypted: encrypted shares by the site that can read them.
    """

    commitment: bytes
    encrypted: dict[str, UInt8[np.ndarray, "size"]]


class SecureServer:
    """The state of the server in one exchange.

    Each method takes the replies to one request, by site, and returns the messages of
    the next request, by site. A missing or invalid reply drops its site: `failures` has
    the reasons.

    Args:
        context: the exchange.
        root: certificate of the root authority of all sites.
        size: length of the vectors.

    Example:
        >>> from fedbilevel.federation.secure_sums.identity import self_signed
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> server = SecureServer(context, self_signed("authority").root, size=4)
        >>> server.collect_keys({"north": b"anything"})
        Traceback (most recent call last):
        ...
        fedbilevel.federation.secure_sums.server.TooFewSitesError: Secure sum of run
        'a1', round 3, exchange 0: 0 of 2 required sites answered the request advertise.
        Site "north": the keys of site 'north': the message was damaged in transit. Site
        "south": no reply. Correct these sites, or wait for them, and start a new
        exchange.
    """

    def __init__(self, context: Context, root: x509.Certificate, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}. A secure sum needs at least 1 number.")
        self._context = context
        self._root = root
        self._size = size
        self._next = Request.ADVERTISE
        self._failures: dict[str, str] = {}
        self._advertisements = Advertisements({}, b"")
        self._secrets: dict[str, SharedSecrets] = {}
        self._survivors = Survivors((), ())
        self._confirmed: tuple[str, ...] = ()
        self._total = np.zeros(0, np.uint32)

    def __repr__(self) -> str:
        context = self._context
        return (
            f"SecureServer(run {context.run!r}, round {context.round_number}, exchange "
            f"{context.exchange}, {len(self._failures)} failures)"
        )

    @property
    def failures(self) -> dict[str, str]:
        """The reason of the first missing or invalid reply of a site, by name."""
        return dict(self._failures)

    def collect_keys(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the messages of the request share, one object for all sites.

        Raises:
            SecureSumError: if fewer sites than the threshold are left.
        """
        context = self._context
        by_name = self._collect(
            Request.ADVERTISE,
            context.roster,
            replies,
            lambda name, reply: read_advertisement(reply, name, context, self._root),
        )
        self._advertisements = Advertisements(by_name, transcript(context, by_name))
        message = bundle(context, {name: replies[name] for name in by_name})
        return dict.fromkeys(by_name, message)

    def collect_shares(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the messages of the request mask.

        Raises:
            SecureSumError: if fewer sites than the threshold are left.
        """
        self._secrets = self._collect(
            Request.SHARE, self._advertisements.by_name, replies, self._read_shares
        )
        return {
            name: seal(
                PacketType.DELIVERY,
                self._context,
                {
                    peer: shared.encrypted[name]
                    for peer, shared in self._secrets.items()
                    if peer != name
                },
            )
            for name in self._secrets
        }

    def collect_masked(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the messages of the request confirm, one object for all survivors.

        Raises:
            SecureSumError: if fewer sites than the threshold are left.
        """
        vectors = self._collect(Request.MASK, self._secrets, replies, self._read_vector)
        self._total = np.zeros(self._size, np.uint32)
        for vector in vectors.values():
            self._total += vector
        self._survivors = Survivors(tuple(vectors), tuple(self._secrets))
        message = encode_survivors(self._context, self._survivors.names)
        return dict.fromkeys(vectors, message)

    def collect_confirmations(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the messages of the request unmask, one object for all that signed.

        Raises:
            SecureSumError: if fewer sites than the threshold are left.
        """
        by_name, digest = self._advertisements
        text = self._survivors.signed_text(digest)
        signatures = self._collect(
            Request.CONFIRM,
            self._survivors.names,
            replies,
            lambda name, reply: read_confirmation(
                reply, self._context, by_name[name].certificate, text
            ),
        )
        self._confirmed = tuple(signatures)
        return dict.fromkeys(
            signatures, encode_confirmations(self._context, signatures)
        )

    def collect_revealed(self, replies: Mapping[str, bytes]) -> SecureSum:
        """Return the sum over the survivors.

        Raises:
            SecureSumError: if fewer sites than the threshold are left, or too many
                shares are wrong.
        """
        revealed = self._collect(
            Request.UNMASK, self._confirmed, replies, self._read_revealed
        )
        by_name, digest = self._advertisements
        total = self._total
        # All secrets are checked before the first mask is removed.
        seeds = {
            name: self._reconstruct(name, revealed, self._is_seed)
            for name in self._survivors.names
        }
        keys = {
            name: mask_key(self._reconstruct(name, revealed, self._is_mask_seed))
            for name in self._survivors.dropped
        }
        for name, seed in seeds.items():
            masks.add_mask(total, masks.self_key(seed, digest, name), subtract=True)
        for peer, private in keys.items():
            for name in self._survivors.names:
                public = by_name[name].keys.mask
                key = masks.pair_key(private, public, digest, name, peer)
                # The opposite of what the survivor did.
                added = not masks.is_subtracted(name, peer)
                masks.add_mask(total, key, subtract=added)
        return SecureSum(total, self._survivors.names)

    def _collect(
        self,
        request: Request,
        expected: Iterable[str],
        replies: Mapping[str, bytes],
        read: Callable[[str, bytes], Content],
    ) -> dict[str, Content]:
        """Return the contents of valid replies, in the order of the roster."""
        if request != self._next:
            raise SecureSumError(
                f"{self._label}: replies to the request {request.name.lower()}, but "
                f"those to {self._next.name.lower()} are next. Use one SecureServer "
                "for one exchange, and each method once."
            )
        contents: dict[str, Content] = {}
        for name in expected:
            if name not in replies:
                self._failures.setdefault(name, "no reply")
                continue
            try:
                contents[name] = read(name, replies[name])
            except RefusedError as error:
                self._failures.setdefault(name, readable(str(error)))
        if len(contents) < self._context.threshold:
            reasons = " ".join(
                f'Site "{name}": {reason}.' for name, reason in self._failures.items()
            )
            raise TooFewSitesError(
                f"{self._label}: {len(contents)} of {self._context.threshold} required "
                f"sites answered the request {request.name.lower()}. {reasons} Correct "
                "these sites, or wait for them, and start a new exchange.",
                len(contents),
                request.name.lower(),
            )
        if request < Request.UNMASK:
            self._next = Request(request + 1)
        return contents

    @property
    def _label(self) -> str:
        context = self._context
        return (
            f"Secure sum of run {context.run!r}, round {context.round_number}, "
            f"exchange {context.exchange}"
        )

    def _read_shares(self, name: str, reply: bytes) -> SharedSecrets:
        entries = unseal(reply, PacketType.SHARES, self._context)
        committed = entries.pop(COMMITMENT, field(b""))
        encrypted = {peer[1:]: entry for peer, entry in entries.items()}
        peers = self._advertisements.by_name.keys() - {name}
        sizes = {entry.size for entry in encrypted.values()}
        if (
            entries.keys() != {f":{peer}" for peer in peers}
            or sizes != {ENCRYPTED}
            or committed.size != SIZE
        ):
            raise RefusedError(
                f"the shares are not those for the {len(peers)} other sites; check "
                "that all use the same version of fedbilevel"
            )
        return SharedSecrets(committed.tobytes(), encrypted)

    def _read_vector(self, name: str, reply: bytes) -> UInt32[np.ndarray, "size"]:
        expected = masks.WORD.itemsize * self._size
        entries = unseal(reply, PacketType.MASKED, self._context, vector=expected)
        vector = entries.get("vector", field(b""))
        if len(entries) != 1 or vector.nbytes != expected:
            raise RefusedError(
                f"the masked vector has {vector.nbytes} bytes, expected {expected}; "
                "check that all sites run the same experiment"
            )
        return vector.view(masks.WORD)

    def _read_revealed(self, name: str, reply: bytes) -> dict[str, Secret]:
        entries = unseal(reply, PacketType.REVEALED, self._context)
        sizes = {entry.size for entry in entries.values()}
        if set(entries) != set(self._survivors.sharers) or sizes != {SEED}:
            raise RefusedError(
                "the revealed shares are not one for each site that shared; check that "
                "all use the same version of fedbilevel"
            )
        return {peer: Secret(entry.tobytes()) for peer, entry in entries.items()}

    def _reconstruct(
        self,
        name: str,
        revealed: Mapping[str, Mapping[str, Secret]],
        is_right: Callable[[str, Secret], bool],
    ) -> Secret:
        """Return a site's secret; one wrong share is omitted if there are enough."""
        shares = {
            self._context.position(holder): secrets[name]
            for holder, secrets in revealed.items()
        }
        spare = len(shares) > self._context.threshold
        for omitted in (0, *(shares if spare else ())):
            positions = [position for position in shares if position != omitted]
            chosen = positions[: self._context.threshold]
            secret = combine({position: shares[position] for position in chosen})
            if is_right(name, secret):
                return secret
        holders = ", ".join(revealed)
        raise SecureSumError(
            f'{self._label}: the shares of site "{name}" do not give its secret, '
            f"since this site or one of {holders} sent a wrong share. Start "
            "a new exchange; if it fails again, exclude one of these sites after "
            "another."
        )

    def _is_seed(self, name: str, secret: Secret) -> bool:
        digest = self._advertisements.transcript
        commitment = self._secrets[name].commitment
        return masks.commitment(secret, digest, name) == commitment

    def _is_mask_seed(self, name: str, secret: Secret) -> bool:
        return (
            public_key(mask_key(secret)) == self._advertisements.by_name[name].keys.mask
        )
