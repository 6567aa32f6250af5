"""The list of survivors that sites sign before they reveal shares."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cryptography import x509

from fedbilevel.federation.secure_sums.advertisement import Advertisements
from fedbilevel.federation.secure_sums.context import Context, joined, names_joined
from fedbilevel.federation.secure_sums.identity import Identity, is_signed
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.transport import RefusedError, readable

LABEL = b"fedbilevel secure sum: survivors"


class Survivors(NamedTuple):
    """The sites of the sum.

    Attributes:
        names: sites whose masked vectors are in the sum, in order.
        sharers: sites that sent shares, so that all survivors' vectors have a mask
            for each of them.

    Example:
        >>> Survivors(("a", "c"), ("a", "b", "c")).dropped
        ('b',)
    """

    names: tuple[str, ...]
    sharers: tuple[str, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Sites that sent shares, but no vector."""
        return tuple(name for name in self.sharers if name not in self.names)

    def signed_text(self, transcript: bytes) -> bytes:
        """Return the bytes that each site signs."""
        return joined(
            LABEL, transcript, names_joined(self.sharers), names_joined(self.names)
        )


def encode_survivors(context: Context, names: Sequence[str]) -> bytes:
    """Return the message with the names of the survivors.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> message = encode_survivors(context, ["south", "north"])
        >>> read_survivors(message, context, "north", ("north", "south")).names
        ('north', 'south')
    """
    entries = {name: field(b"") for name in names}
    return seal(PacketType.SURVIVORS, context, entries)


def read_survivors(
    message: bytes, context: Context, name: str, sharers: tuple[str, ...]
) -> Survivors:
    """Return the survivors that the server reports to a site.

    Args:
        message: bytes, not validated.
        context: the exchange.
        name: name of the site.
        sharers: sites whose shares the site received, and itself.

    Raises:
        RefusedError: if the site should not sign this list.
    """
    listed = unseal(message, PacketType.SURVIVORS, context)
    if any(entry.size for entry in listed.values()):
        raise RefusedError(
            "the list of survivors has more than names; check that all use the same "
            "version of fedbilevel"
        )
    strangers = [each for each in listed if each not in sharers]
    if strangers:
        raise RefusedError(
            f'the server lists "{readable(strangers[0][:64])}" as a survivor, but that '
            "site sent no shares; start a new exchange"
        )
    if name not in listed:
        raise RefusedError(
            f'the server lists this site, "{readable(name)}", as dropped, although it '
            "sent its vector; start a new exchange, with a longer timeout if the "
            "upload was late"
        )
    if len(listed) < context.threshold:
        raise RefusedError(
            f"the server lists {len(listed)} survivors, but {context.threshold} of "
            f"{len(context.roster)} sites are required; start a new exchange when more "
            "sites are connected"
        )
    return Survivors(tuple(each for each in sharers if each in listed), sharers)


def encode_confirmation(
    identity: Identity, context: Context, survivors: Survivors, transcript: bytes
) -> bytes:
    """Return the message with a site's signature of the survivors.

    Example:
        >>> from fedbilevel.federation.secure_sums.identity import self_signed
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> both = Survivors(("north", "south"), ("north", "south"))
        >>> message = encode_confirmation(self_signed("north"), context, both, b"")
        >>> list(unseal(message, PacketType.CONFIRMATION, context))
        ['signature']
    """
    signature = identity.sign(survivors.signed_text(transcript))
    return seal(PacketType.CONFIRMATION, context, {"signature": field(signature)})


def read_confirmation(
    message: bytes,
    context: Context,
    certificate: x509.Certificate,
    signed_text: bytes,
) -> bytes:
    """Return a site's signature of the survivors.

    Raises:
        RefusedError: if the signature is not valid.
    """
    entries = unseal(message, PacketType.CONFIRMATION, context)
    signature = entries.get("signature", field(b"")).tobytes()
    if len(entries) != 1 or not is_signed(certificate, signed_text, signature):
        raise RefusedError(
            "the signature is not that of this list of survivors; start a new exchange"
        )
    return signature


def encode_confirmations(context: Context, signatures: Mapping[str, bytes]) -> bytes:
    """Return the message with the signatures of several sites.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> message = encode_confirmations(context, {"north": b"signature"})
        >>> list(unseal(message, PacketType.CONFIRMATIONS, context))
        ['north']
    """
    entries = {name: field(signature) for name, signature in signatures.items()}
    return seal(PacketType.CONFIRMATIONS, context, entries)


def check_confirmations(
    message: bytes,
    context: Context,
    survivors: Survivors,
    advertisements: Advertisements,
) -> None:
    """Raise `RefusedError` unless enough sites have signed the same survivors.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> both = Survivors(("north", "south"), ("north", "south"))
        >>> nothing = encode_confirmations(context, {})
        >>> check_confirmations(nothing, context, both, Advertisements({}, b""))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: 0 sites have signed the list of
        survivors, but 2 of 2 are required; start a new exchange when more sites are
        connected
    """
    signatures = unseal(message, PacketType.CONFIRMATIONS, context)
    text = survivors.signed_text(advertisements.transcript)
    for name, signature in signatures.items():
        if name not in survivors.names:
            raise RefusedError(
                f'"{readable(name[:64])}" signed the list of survivors, but is not on '
                "it; start a new exchange"
            )
        certificate = advertisements.by_name[name].certificate
        if not is_signed(certificate, text, signature.tobytes()):
            shown = readable(", ".join(survivors.names))
            raise RefusedError(
                f'the signature of site "{readable(name)}" is not that of the '
                f"survivors that this site was shown ({shown}); "
                "the server may have shown different lists: check who operates it, and "
                "start a new exchange"
            )
    if len(signatures) < context.threshold:
        raise RefusedError(
            f"{len(signatures)} sites have signed the list of survivors, but "
            f"{context.threshold} of {len(context.roster)} are required; start a new "
            "exchange when more sites are connected"
        )
