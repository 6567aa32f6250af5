"""Signed public keys and rule of a site for one exchange, and those of all sites."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from cryptography import x509

from fedbilevel.federation.secure_sums.agreement import PublicKeys, is_usable
from fedbilevel.federation.secure_sums.context import Context, joined
from fedbilevel.federation.secure_sums.identity import (
    Identity,
    der,
    is_signed,
    read_certificate,
)
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.secure_sums.secret import SIZE
from fedbilevel.federation.transport import RefusedError, readable

LABEL = b"fedbilevel secure sum: public keys"
ENTRIES = "certificate", "encryption", "mask", "second_sums", "signature"
REFUSED, PERMITTED = b"refused", b"permitted"
"""Values of the entry `second_sums`: see the module `second_sums`."""


class Advertisement(NamedTuple):
    """The verified public keys of a site, and its rule.

    Attributes:
        certificate: certificate of the site.
        keys: its public keys of this exchange.
        refuses_second_sums: whether it has signed that it never signs two sums of one
            exchange.
    """

    certificate: x509.Certificate
    keys: PublicKeys
    refuses_second_sums: bool


class Advertisements(NamedTuple):
    """The verified public keys of all participants.

    Attributes:
        by_name: advertisements in the order of the roster.
        transcript: digest of the exchange, the names, the keys and the rules. All later
            keys and signatures are bound to it.
    """

    by_name: Mapping[str, Advertisement]
    transcript: bytes


def advertise(
    identity: Identity,
    context: Context,
    keys: PublicKeys,
    *,
    refuses_second_sums: bool,
) -> bytes:
    """Return the signed message with a site's public keys and its rule.

    Example:
        >>> from fedbilevel.federation.secure_sums.agreement import KeyPairs
        >>> from fedbilevel.federation.secure_sums.identity import self_signed
        >>> north, context = self_signed("north"), Context("a1", 3, 0, ("north", "s"))
        >>> keys = KeyPairs.new().public
        >>> message = advertise(north, context, keys, refuses_second_sums=True)
        >>> read_advertisement(message, "north", context, north.root).keys == keys
        True
    """
    rule = REFUSED if refuses_second_sums else PERMITTED
    signature = identity.sign(_signed_text(identity.name, context, keys, rule))
    contents = der(identity.certificate), *keys, rule, signature
    entries = {name: field(part) for name, part in zip(ENTRIES, contents, strict=True)}
    return seal(PacketType.ADVERTISEMENT, context, entries)


def read_advertisement(
    message: bytes, name: str, context: Context, root: x509.Certificate
) -> Advertisement:
    """Return the public keys of a site and its rule, after all checks.

    Raises:
        RefusedError: if the message is not one of this site in this exchange.
    """
    where = f'the keys of site "{readable(name)}"'
    try:
        entries = unseal(message, PacketType.ADVERTISEMENT, context)
        if set(entries) != set(ENTRIES):
            raise RefusedError(
                f"the message does not have the entries {', '.join(ENTRIES)}; check "
                "that all use the same version of fedbilevel"
            )
        der_bytes, *pair, rule, signature = (
            entries[entry].tobytes() for entry in ENTRIES
        )
        try:
            certificate = read_certificate(der_bytes, name, root)
        except RefusedError as error:
            raise RefusedError(f"the certificate is not valid: {error}") from None
        keys = PublicKeys(*pair)
        if not is_signed(
            certificate, _signed_text(name, context, keys, rule), signature
        ):
            raise RefusedError(
                "the signature is not that of these keys, this site and this exchange; "
                "keys were replaced on the way: check who operates the server"
            )
        if rule not in (REFUSED, PERMITTED):
            raise RefusedError(
                "the message does not say whether the site refuses second sums; check "
                "that all use the same version of fedbilevel"
            )
        if any(len(key) != SIZE or not is_usable(key) for key in keys):
            raise RefusedError(
                "a key is not a usable X25519 key; check the installation at that site"
            )
    except RefusedError as error:
        raise RefusedError(f"{where}: {error}") from None
    return Advertisement(certificate, keys, rule == REFUSED)


def bundle(context: Context, messages: Mapping[str, bytes]) -> bytes:
    """Return the message with the advertisements of all sites, unchanged.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> message = bundle(context, {"north": b"1", "south": b"2"})
        >>> sorted(unseal(message, PacketType.ROSTER, context))
        ['north', 'south']
    """
    entries = {name: field(message) for name, message in messages.items()}
    return seal(PacketType.ROSTER, context, entries)


def read_bundle(
    message: bytes, context: Context, root: x509.Certificate
) -> tuple[Advertisements, dict[str, bytes]]:
    """Return the public keys of all sites, after all checks, and their messages.

    Raises:
        RefusedError: if an advertisement is not valid, a key occurs twice, or fewer
            sites than the threshold are in it.

    Example:
        >>> from fedbilevel.federation.secure_sums.identity import self_signed
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> root = self_signed("authority").root
        >>> read_bundle(bundle(context, {}), context, root)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the server sent the keys of 0
        sites, but 2 of 2 are required; wait until enough sites are connected, and start
        a new exchange
    """
    entries = unseal(message, PacketType.ROSTER, context)
    strangers = [name for name in entries if name not in context.roster]
    if strangers:
        raise RefusedError(
            f'the server sent keys of "{readable(strangers[0][:64])}", which is not in '
            "the roster of this site; give every site the same roster"
        )
    if len(entries) < context.threshold:
        raise RefusedError(
            f"the server sent the keys of {len(entries)} sites, but "
            f"{context.threshold} of {len(context.roster)} are required; wait until "
            "enough sites are connected, and start a new exchange"
        )
    messages = {name: entry.tobytes() for name, entry in entries.items()}
    by_name = {
        name: read_advertisement(messages[name], name, context, root)
        for name in context.roster
        if name in messages
    }
    owners: dict[bytes, str] = {}
    for name, advertisement in by_name.items():
        for key in advertisement.keys:
            if key in owners:
                raise RefusedError(
                    f'the sites "{owners[key]}" and "{name}" sent the same key; check '
                    "the installation at both sites"
                )
            owners[key] = name
    return Advertisements(by_name, transcript(context, by_name)), messages


def transcript(context: Context, by_name: Mapping[str, Advertisement]) -> bytes:
    """Return the digest of an exchange, its public keys and the sites' rules.

    Example:
        >>> len(transcript(Context("a1", 3, 0, ("north", "south")), {}))
        32
    """
    parts = (
        part
        for name in context.roster
        if name in by_name
        for part in (
            name.encode(),
            *by_name[name].keys,
            REFUSED if by_name[name].refuses_second_sums else PERMITTED,
        )
    )
    return hashlib.sha256(joined(LABEL, context.encode(), *parts)).digest()


def _signed_text(name: str, context: Context, keys: PublicKeys, rule: bytes) -> bytes:
    return joined(LABEL, context.encode(), name.encode(), *keys, rule)
