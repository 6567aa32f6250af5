"""A fuzzer of the decoder, in a separate process because it may crash.

It prints the number of messages of each type, the number of refusals, and the growth of
the process in bytes.
"""

import io
import json
import pickle
import random
import resource
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedbilevel import LocalExamples
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import Enrolment, RefusedError
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.wire_format import DTYPES, decode, encode

UPLINK = {"x": np.ones(3), "y": np.ones((2, 2), np.float32), "sent": np.array(True)}
FORM = UPLINK, {"rounds": np.array(1)}
ANSWER = Answer.of("first", Moment(3, 1), *FORM).encode()
TASK = Task(
    "first",
    PhaseReference(False, 1),
    Moment(3, 1),
    np.array([0, 7], np.uint32),
    (2, 1),
    {":": np.ones(5)},
    (0.5, 1.5),
).encode()
ENROLMENT = Enrolment.of(LocalExamples(np.ones((3, 2)), {"a": np.ones(4)})).encode()
NUMBERS = [0, 1, 2, 3, 7, 8, 24, 255, 2**31, 2**40, 2**53, 2**62, 2**63, 2**64 - 1]
NUMBERS += [2**64, -1, -(2**63), 10**30, 10**400]
TYPES = [*DTYPES, "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "C128", ""]
WORDS = [
    "run",
    "moment",
    "phase",
    "factors",
    ":['x']",
    ":",
    "",
    "a\0b",
    "__metadata__",
    "é" * 9,
]
LARGE = 1_000_000


def sealed(body: bytes) -> bytes:
    """Return a message with a valid checksum, so that its content is decoded."""
    return struct.pack("<I", zlib.crc32(body)) + body


def with_header(header: bytes, content: bytes, length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return sealed(struct.pack("<Q", size % 2**64) + header + content)


def parts(message: bytes) -> tuple[bytes, bytes]:
    body = message[4:]
    (length,) = struct.unpack("<Q", body[:8])
    return body[8 : 8 + length], body[8 + length :]


def flipped(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(draw: random.Random, content: bytes) -> bytes:
    first, last = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    piece = content[first:last]
    return draw.choice(
        [
            content[:first],
            content[:first] + content[last:],
            content[:last] + piece + content[last:],
            content + piece,
            content[:first] + draw.randbytes(draw.randrange(20)) + content[last:],
        ]
    )


def anything(draw: random.Random, depth: int = 3) -> Any:
    """Return a random JSON value."""
    if depth and draw.random() < 0.5:
        inside = [anything(draw, depth - 1) for _ in range(draw.randrange(4))]
        if draw.random() < 0.5:
            return inside
        return {draw.choice(WORDS) + str(i): item for i, item in enumerate(inside)}
    return draw.choice([*NUMBERS, *WORDS, None, True, 1.5, -0.0])


def entry(draw: random.Random, description: Any) -> Any:
    """Return a header entry of an array, with one change."""
    description = dict(description)
    kind = draw.randrange(6)
    if kind == 0:
        description["dtype"] = draw.choice(TYPES)
    elif kind == 1:
        description["shape"] = [draw.choice(NUMBERS) for _ in range(draw.randrange(5))]
    elif kind == 2:
        description["data_offsets"] = [draw.choice(NUMBERS) for _ in range(2)]
    elif kind == 3:
        description["shape"] = [1] * draw.randrange(90) + list(description["shape"])
    elif kind == 4:
        description["shape"] = [
            0,
            *(draw.choice(NUMBERS) for _ in range(draw.randrange(3))),
        ]
        description["data_offsets"] = [description["data_offsets"][0]] * 2
    else:
        description[draw.choice([*description, "more"])] = anything(draw)
    return description


def changed_header(draw: random.Random, message: bytes) -> bytes:
    header, content = parts(message)
    description = json.loads(header)
    pairs = [
        (name, entry(draw, item) if draw.random() < 0.4 else item)
        for name, item in description.items()
    ]
    kind = draw.randrange(6)
    if kind == 0:
        pairs.append((draw.choice(WORDS), draw.choice(pairs)[1]))
    elif kind == 1:
        pairs.append(draw.choice(pairs))  # The same name twice.
    elif kind == 2:
        pairs.pop(draw.randrange(len(pairs)))
    elif kind == 3:
        pairs.append(("__metadata__", anything(draw)))
    entries = ",".join(f"{json.dumps(name)}:{json.dumps(item)}" for name, item in pairs)
    return with_header(b"{%b}" % entries.encode(), content)


def other_arrays(draw: random.Random, message: bytes) -> bytes:
    """Return a valid message with random names, types, shapes and values."""
    arrays: dict[str, np.ndarray] = dict(decode(message))
    for _ in range(draw.randint(1, 3)):
        dtype = draw.choice(list(DTYPES.values()))
        shape = [draw.randrange(4) for _ in range(draw.randrange(4))]
        count = int(np.prod(shape)) * dtype.itemsize
        noise = np.frombuffer(draw.randbytes(count), dtype).reshape(shape)
        arrays[draw.choice([*sorted(arrays), *WORDS[:7]])] = noise
    return encode(arrays)


def foreign(draw: random.Random, message: bytes) -> bytes:
    """Return files of other programs."""
    file = io.BytesIO()
    kind = draw.randrange(4)
    if kind == 0:
        pickle.dump({"x": [1.0] * draw.randrange(9), "call": print}, file)
    elif kind == 1:
        np.save(file, np.ones(draw.randrange(9)))
    elif kind == 2:
        np.savez(file, x=np.ones(draw.randrange(9)))
    else:
        file.write(json.dumps(anything(draw)).encode())
    content = cut(draw, file.getvalue()) if draw.random() < 0.3 else file.getvalue()
    return draw.choice(
        [content, sealed(content), with_header(content, b""), message[:4] + content]
    )


def large(draw: random.Random, message: bytes) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        return sealed(draw.randbytes(LARGE))
    if kind == 1:  # Many empty arrays.
        nothing = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        entries = b",".join(b'"%d":%b' % (i, nothing) for i in range(LARGE // 58))
        return with_header(b"{%b}" % entries, b"")
    if kind == 2:  # A long name.
        header = {"n" * (LARGE - 100): {"dtype": "U8", "shape": [1]}}
        return with_header(json.dumps(header).encode(), b"1")
    if kind == 3:  # As many dimensions as fit.
        shape = b"1," * (LARGE // 2 - 50)
        long = b'{":":{"dtype":"U8","shape":[%b1],"data_offsets":[0,1]}}' % shape
        return with_header(long, b"1")
    if kind == 4:
        return with_header(b"[" * LARGE, b"")
    if kind == 5:
        return with_header(b'{"a":' * (LARGE // 5), b"")
    if kind == 6:  # Many unknown keys.
        entries = b",".join(b'"%d":"m"' % i for i in range(LARGE // 13))
        return with_header(b'{"__metadata__":{%b}}' % entries, b"")
    size = 2**40
    header = {"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    length = draw.choice([None, size, 2**64 - 1, 10**8, 10**8 - 1])
    return with_header(json.dumps(header).encode(), bytes(LARGE), length)


Make = Callable[[random.Random, bytes], bytes]
KINDS: dict[str, tuple[Make, int]] = {
    "noise": (lambda draw, message: draw.randbytes(draw.randrange(200)), 4),
    "sealed noise": (
        lambda draw, message: sealed(draw.randbytes(draw.randrange(200))),
        4,
    ),
    "bits flipped on the way": (flipped, 4),
    "bits flipped": (lambda draw, message: sealed(flipped(draw, message[4:])), 16),
    "bits flipped in the header": (
        lambda draw, message: with_header(
            flipped(draw, parts(message)[0]), parts(message)[1]
        ),
        16,
    ),
    "cut": (lambda draw, message: sealed(cut(draw, message[4:])), 8),
    "cut in the header": (
        lambda draw, message: with_header(
            cut(draw, parts(message)[0]), parts(message)[1]
        ),
        8,
    ),
    "other length": (
        lambda draw, message: with_header(*parts(message), draw.choice(NUMBERS)),
        4,
    ),
    "changed header": (changed_header, 20),
    "other arrays": (other_arrays, 6),
    "foreign": (foreign, 3),
}


def check(message: bytes) -> int:
    """Pass a message to all decoders; return the number of refusals."""
    refused = 0
    try:
        for name, array in decode(message).items():
            assert isinstance(name, str)
            assert array.dtype in DTYPES.values()
    except RefusedError:
        refused += 1
    try:
        task = Task.decode(message)
        assert task.run.isalnum()
        assert task.key.dtype == np.uint32
        assert min(task.counted) >= 0
        assert all(0 <= factor <= 2 for factor in task.factors or ())
    except RefusedError:
        refused += 1
    try:
        result = Answer.decode(message).read(FORM)
        jax.tree.map(_alike, result, FORM)
    except RefusedError:
        refused += 1
    return refused


def _alike(result: np.ndarray, wanted: np.ndarray) -> None:
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)


def enrolment(draw: random.Random) -> bytes:
    kind = draw.randrange(4)
    if kind == 0:
        return cut(draw, ENROLMENT)
    if kind == 1:
        return flipped(draw, ENROLMENT)
    if kind == 2:
        fields = json.loads(ENROLMENT)
        fields[draw.choice([*fields, "more"])] = anything(draw)
        return json.dumps(fields).encode()
    return json.dumps(anything(draw)).encode()


def check_enrolment(message: bytes) -> int:
    try:
        result = Enrolment.decode(message)
    except RefusedError:
        return 1
    sizes = result.upper_size, result.lower_size
    assert 0 <= min(sizes) <= max(sizes) < 2**31
    assert max(sizes) > 0
    assert all(isinstance(item, str) for item in result.upper.values())
    return 0


def grown() -> int:
    """Return the peak memory of this process in bytes."""
    # In bytes on macOS, in kilobytes on Linux.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(seed: int, inputs: int) -> None:
    draw = random.Random(seed)
    assert check(ANSWER) == check(TASK) == 1
    assert check_enrolment(ENROLMENT) == 0
    before = grown()
    seen: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    names, weights = list(KINDS), [often for _, often in KINDS.values()]
    for number in range(inputs):
        if number % 10 == 0:
            seen["enrolment"] += 1
            refused["enrolment"] += check_enrolment(enrolment(draw))
            continue
        if number % 1000 == 1:
            kind, message = "large", large(draw, ANSWER)
        else:
            (kind,) = draw.choices(names, weights)
            message = KINDS[kind][0](draw, draw.choice([ANSWER, TASK]))
        seen[kind] += 1
        refused[kind] += check(message)
    for text in (
        "[" * LARGE,
        '{"a":' * (LARGE // 5),
        "[" + "[]," * (LARGE // 3) + "0]",
    ):
        refused["enrolment"] += check_enrolment(text.encode())
    print(json.dumps({"seen": seen, "refused": refused, "grown": grown() - before}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
