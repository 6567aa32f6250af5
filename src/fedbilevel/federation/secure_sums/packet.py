"""Messages of a secure sum: named bytes, bound to a type and an exchange."""

from collections.abc import Mapping
from enum import Enum

import numpy as np
from jaxtyping import UInt8

from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.federation.wire_format import decode, encode

LARGEST_ENTRY = 2**14
"""Maximum bytes of one entry other than a vector: a certificate with keys."""
OVERHEAD = 2**12
"""Maximum bytes of a message beside its entries."""
Field = UInt8[np.ndarray, "size"]


class PacketType(Enum):
    """The types of messages; no message is accepted as one of another type.

    Example:
        >>> PacketType.MASKED.value
        'masked vector'
    """

    ADVERTISEMENT = "advertisement"
    ROSTER = "roster"
    SHARES = "shares"
    DELIVERY = "delivery"
    MASKED = "masked vector"
    SURVIVORS = "survivors"
    CONFIRMATION = "confirmation"
    CONFIRMATIONS = "confirmations"
    REVEALED = "revealed shares"


def seal(kind: PacketType, context: Context, entries: Mapping[str, Field]) -> bytes:
    """Return a message with these entries.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south"))
        >>> message = seal(PacketType.ROSTER, context, {"north": field(b"key")})
        >>> unseal(message, PacketType.ROSTER, context)["north"].tobytes()
        b'key'
    """
    prefixed = {f":{name}": entry for name, entry in entries.items()}
    return encode(
        {"type": field(kind.value.encode()), "context": field(context.encode())}
        | prefixed
    )


def unseal(
    message: bytes,
    kind: PacketType,
    context: Context,
    vector: int = 0,
) -> dict[str, Field]:
    """Return the entries of a message, as views of it.

    Args:
        message: bytes, not validated.
        kind: the expected type.
        context: the expected exchange.
        vector: bytes of the vector in the message, if it has one.

    Raises:
        RefusedError: if the message is not valid, or is of another type or exchange.
    """
    most = OVERHEAD + vector + LARGEST_ENTRY * len(context.roster)
    if len(message) > most:
        raise RefusedError(
            f"the {kind.value} message has {len(message)} bytes, more than {most}; "
            "send the message of this exchange"
        )
    arrays = decode(message)
    for name, array in arrays.items():
        if array.dtype != np.uint8 or array.ndim != 1:
            raise RefusedError(
                f"the entry {readable(name[:50])!r} of the {kind.value} message is not "
                "a vector of bytes; check that all use the same version of fedbilevel"
            )
    actual = arrays.pop("type", field(b"")).tobytes()
    if actual != kind.value.encode():
        raise RefusedError(
            f"the message is of type {_text(actual)!r}, expected {kind.value!r}; send "
            "the requests of a secure sum in their order"
        )
    theirs = arrays.pop("context", field(b"")).tobytes()
    if theirs != context.encode():
        raise RefusedError(
            f"the {kind.value} message belongs to {_text(theirs)}, but this exchange "
            f"is {_text(context.encode())}; never reuse messages of another exchange, "
            "and give every site the same roster"
        )
    if not all(name.startswith(":") for name in arrays):
        raise RefusedError(
            f"the {kind.value} message has an unexpected entry; check that all use the "
            "same version of fedbilevel"
        )
    return {name[1:]: array for name, array in arrays.items()}


def field(content: bytes) -> Field:
    """Return bytes as an entry.

    Example:
        >>> field(b"ab")
        array([97, 98], dtype=uint8)
    """
    return np.frombuffer(content, np.uint8)


def _text(content: bytes) -> str:
    return readable(content[:300].decode("utf-8", "replace"))
