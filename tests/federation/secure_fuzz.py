"""Random changes of the messages of a secure sum, to sites and to the server."""

import random
from collections import Counter

import pytest

from fedbilevel.federation.secure_sums.packet import PacketType, field, seal, unseal
from fedbilevel.federation.secure_sums.server import SecureSumError
from fedbilevel.federation.transport import RefusedError
from tests.federation.fuzz import KINDS
from tests.federation.secure_exchange import Exchange, context_of, vectors_of
from tests.federation.secure_messages import REPLIES, TYPES

CONTEXT = context_of(3)
SITE = "site-1"
NAMES = list(KINDS)
OFTEN = [often for _, often in KINDS.values()]
Entries = dict[str, bytes]


def unsealed(message: bytes, kind: PacketType) -> Entries:
    entries = unseal(message, kind, CONTEXT, len(message))
    return {name: entry.tobytes() for name, entry in entries.items()}


def sealed(entries: Entries, kind: PacketType) -> bytes:
    return seal(kind, CONTEXT, {name: field(part) for name, part in entries.items()})


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    """Return an entry with one change: bits, length, order or everything."""
    copy = bytearray(content or b"\0")
    kind = draw.randrange(5)
    if kind == 0:
        copy[draw.randrange(len(copy))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del copy[draw.randrange(len(copy)) :]
    elif kind == 2:
        copy += draw.randbytes(draw.randint(1, 40))
    elif kind == 3:
        first = draw.randrange(len(copy))
        copy[first : first + 8] = draw.randbytes(8)
    else:
        copy[:] = draw.randbytes(draw.choice([0, 1, 32, 64, len(copy)]))
    return bytes(copy)


def changed_entries(
    draw: random.Random, message: bytes, kind: PacketType, inner: PacketType | None
) -> bytes:
    """Return a well-formed message with other entries."""
    entries = unsealed(message, kind)
    name = draw.choice([*entries, "new"])
    how = draw.randrange(5)
    if how == 0:
        entries.pop(name, None)
    elif how == 1:
        other = draw.choice(["", "site-1", "site-2", "site-9", "\ud800", "n" * 5000])
        entries[other] = entries.pop(name, b"")
    elif how == 2 and inner is not None and name in entries:
        # The keys of a site are a message in a message.
        entries[name] = changed_entries(draw, entries[name], inner, None)
    else:
        entries[name] = changed_bytes(draw, entries.get(name, b""))
    return sealed(entries, kind)


def mutated(draw: random.Random, message: bytes, kind: PacketType) -> bytes:
    inner = PacketType.ADVERTISEMENT if kind is PacketType.ROSTER else None
    if draw.random() < 0.6:
        return changed_entries(draw, message, kind, inner)
    (name,) = draw.choices(NAMES, OFTEN)
    return KINDS[name][0](draw, message)


def fresh(step: str) -> Exchange:
    return Exchange(CONTEXT, vectors_of(3, size=4)).until(step)


def fuzz(seed: int, inputs: int) -> Counter[str]:
    """Return the numbers of refused and accepted messages; nothing else may happen."""
    draw = random.Random(seed)
    ends: Counter[str] = Counter()
    sites = {step: fresh(step) for step in TYPES}
    servers = {step: fresh(step) for step in Exchange.STEPS}
    for step, exchange in servers.items():
        exchange.answer(step)
    for _ in range(inputs):
        step = draw.choice(list(TYPES))
        message = mutated(draw, sites[step].requests[SITE], TYPES[step])
        if is_accepted_by_site(sites[step], step, message):
            # A message that is still valid has entries of fewer sites, but no others.
            kind = TYPES[step]
            whole = unsealed(sites[step].requests[SITE], kind)
            assert unsealed(message, kind).items() <= whole.items()
            ends["site accepted"] += 1
            sites[step] = fresh(step)
        else:
            ends["site refused"] += 1
        step = draw.choice(Exchange.STEPS)
        message = mutated(draw, servers[step].replies[SITE], REPLIES[step])
        if is_accepted_by_server(servers[step], step, message):
            # The server cannot know whether a masked vector or a share is right.
            if step in ("advertise", "confirm"):
                kind = REPLIES[step]
                valid = unsealed(servers[step].replies[SITE], kind)
                assert unsealed(message, kind) == valid
            ends["server accepted"] += 1
        else:
            ends["server refused"] += 1
    return ends


def is_accepted_by_site(exchange: Exchange, step: str, message: bytes) -> bool:
    try:
        exchange.ask(step, SITE, message)
    except RefusedError as error:
        reason = error.failure.reason
    else:
        return True
    assert len(reason.encode()) > 30
    return False


def is_accepted_by_server(exchange: Exchange, step: str, message: bytes) -> bool:
    # One reply is never enough, so that the server stays at this request.
    exchange.server._failures.clear()
    whole, exchange.replies = exchange.replies, {SITE: message}
    with pytest.raises(SecureSumError) as caught:
        exchange.collect(step)
    str(caught.value).encode()
    exchange.replies = whole
    return SITE not in exchange.server.failures
