"""Messages of a secure sum with changes that a dishonest server could make."""

from collections.abc import Mapping

from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal

TYPES = {
    "share": PacketType.ROSTER,
    "mask": PacketType.DELIVERY,
    "confirm": PacketType.SURVIVORS,
    "unmask": PacketType.CONFIRMATIONS,
}
"""Types of the messages to the sites, by request."""
REPLIES = {
    "advertise": PacketType.ADVERTISEMENT,
    "share": PacketType.SHARES,
    "mask": PacketType.MASKED,
    "confirm": PacketType.CONFIRMATION,
    "unmask": PacketType.REVEALED,
}
"""Types of the sites' replies, by request."""


def changed(
    message: bytes,
    kind: PacketType,
    context: Context,
    entries: Mapping[str, bytes | None],
) -> bytes:
    """Return a message with other entries; those that are None are omitted."""
    content = {
        name: entry.tobytes() for name, entry in unseal(message, kind, context).items()
    }
    for name, entry in entries.items():
        content.pop(name, None)
        if entry is not None:
            content[name] = entry
    return seal(kind, context, {name: field(entry) for name, entry in content.items()})


def entry_of(message: bytes, kind: PacketType, context: Context, name: str) -> bytes:
    return unseal(message, kind, context, len(message))[name].tobytes()
