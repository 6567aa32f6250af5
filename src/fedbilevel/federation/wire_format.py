"""The wire format: named arrays as bytes, without executable content.

A message is a checksum followed by a file in the safetensors format, which any reader
of that format can read. This module does not use the safetensors library, which copies
each message three times: for 50 MB that takes longer than sending it. A test compares
both.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxtyping import PyTree

from fedbilevel.federation.transport import RefusedError
from fedbilevel.mathematics import tree

CHECKSUM = struct.Struct("<I")
LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 2**20
"""Maximum bytes of a header, which has about 100 for each array."""
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{
        f"{letter}{bits}": np.dtype(f"{name}{bits}")
        for letter, name, widths in (
            ("F", "float", (16, 32, 64)),
            ("I", "int", (8, 16, 32, 64)),
            ("U", "uint", (8, 16, 32, 64)),
        )
        for bits in widths
    },
}
"""Supported types by their names in the safetensors format."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes.

    Example:
        >>> decode(encode({"x": np.ones(2)}))
        {'x': array([1., 1.])}
    """
    (message,) = encode_each([arrays])
    return message


def encode_each(
    several: Sequence[Mapping[str, np.ndarray]], own: int = 1
) -> list[bytes]:
    """Return messages that differ in their last arrays only.

    The checksum of all other arrays is computed once.

    Args:
        several: arrays by name, with the same names, shapes and types in the same
            order.
        own: number of the last arrays that may differ.

    Example:
        >>> x = np.ones(2)
        >>> messages = encode_each([{"x": x, "to": np.array([k])} for k in range(3)])
        >>> decode(messages[2])
        {'x': array([1., 1.]), 'to': array([2])}
    """
    arrays = several[0]
    header: dict[str, Any] = {}
    buffers: list[Any] = []
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        buffers.append(_bytes(array))
    text = json.dumps(header).encode()
    body = [LENGTH.pack(len(text)), text, *buffers[:-own]]
    checksum = 0
    for part in body:
        checksum = zlib.crc32(part, checksum)
    messages = []
    for named in several:
        last = [_bytes(array) for array in list(named.values())[-own:]]
        whole = checksum
        for part in last:
            whole = zlib.crc32(part, whole)
        messages.append(b"".join([CHECKSUM.pack(whole), *body, *last]))
    return messages


def _bytes(array: np.ndarray) -> Any:
    """Return an array's bytes, without a copy if it is contiguous."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8)


def decode(message: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message; they are views of it.

    Raises:
        RefusedError: if the message is not valid.

    Example:
        >>> decode(b"not a message")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the message was damaged in
        transit
    """
    if type(message) is not bytes:
        raise RefusedError(f"the message is a {type(message).__name__}, not bytes")
    whole = memoryview(message)
    prefix = CHECKSUM.size + LENGTH.size
    if len(whole) < prefix or CHECKSUM.unpack_from(whole) != (
        zlib.crc32(whole[CHECKSUM.size :]),
    ):
        raise RefusedError("the message was damaged in transit")
    (length,) = LENGTH.unpack_from(whole, CHECKSUM.size)
    if length > min(LONGEST_HEADER, len(whole) - prefix):
        raise RefusedError("the header is too long")
    try:
        header = json.loads(bytes(whole[prefix : prefix + length]))
    except (ValueError, RecursionError):
        raise RefusedError("the header is not valid JSON") from None
    if type(header) is not dict:
        raise RefusedError("the header is not a JSON object")
    return dict(_arrays(header, whole[prefix + length :]))


def _arrays(
    header: dict[str, Any], data: memoryview
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays, which must be contiguous and fill the data exactly."""
    expected = 0
    for name, entry in header.items():
        if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise RefusedError(
                f"the header entry {name[:50]!r} does not describe an array"
            )
        dtype, shape = entry["dtype"], entry["shape"]
        known = DTYPES.get(dtype) if type(dtype) is str else None
        if known is None:
            raise RefusedError(f"{name[:50]!r} has an unsupported type")
        if type(shape) is not list or len(shape) > 32:
            raise RefusedError(f"{name[:50]!r} has no valid shape")
        if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
            raise RefusedError(f"{name[:50]!r} has no valid shape")
        end = expected + prod(shape) * known.itemsize
        if entry["data_offsets"] != [expected, end] or end > len(data):
            raise RefusedError(f"{name[:50]!r} has wrong data offsets")
        yield name, _array(data[expected:end], known, shape)
        expected = end
    if expected != len(data):
        raise RefusedError("the message is longer than its header describes")


def _array(data: memoryview, dtype: np.dtype, shape: list[int]) -> np.ndarray:
    numbers = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype)
    if dtype.kind == "b" and np.any(numbers > 1):
        raise RefusedError("a boolean array has values other than 0 and 1")
    try:
        # The format allows shapes of empty arrays that NumPy does not support.
        return numbers.view(dtype).reshape(shape)
    except ValueError:
        raise RefusedError(
            "NumPy does not support the shape of an empty array"
        ) from None


def pack(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by path.

    Example:
        >>> pack({"x": 1.0, "y": np.ones(2)})
        {":['x']": array(1.), ":['y']": array([1., 1.])}
    """
    return {
        _name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def unpack(arrays: Mapping[str, np.ndarray], form: PyTree) -> PyTree:
    """Return the tree of arrays by path, if names, shapes and types match `form`.

    Args:
        arrays: arrays by path, not validated.
        form: tree of shapes and types, as from `jax.eval_shape`.

    Raises:
        RefusedError: if a name, a shape or a type does not match.

    Example:
        >>> form = {"x": jax.ShapeDtypeStruct((2,), np.float32)}
        >>> unpack({":['x']": np.ones(2)}, form)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: ['x'] is float64[2], expected
        float32[2]
    """
    paths = jax.tree_util.tree_leaves_with_path(form)
    expected = {_name(path): leaf for path, leaf in paths}
    for name in expected:
        if name not in arrays:
            raise RefusedError(f"{_label(name)} is missing")
    for name in arrays:
        if name not in expected:
            raise RefusedError(f"{_label(name)[:50]!r} is not expected")
    for name, leaf in expected.items():
        array = arrays[name]
        if array.dtype != leaf.dtype or array.shape != leaf.shape:
            actual, right = map(tree.form, (array, leaf))
            raise RefusedError(f"{_label(name)} is {actual}, expected {right}")
    leaves = [arrays[name] for name in expected]
    return jax.tree.unflatten(jax.tree.structure(form), leaves)


def _name(path: tuple[object, ...]) -> str:
    # The prefix gives a single array, whose path is empty, a name as well.
    return f":{jax.tree_util.keystr(path)}"


def _label(name: str) -> str:
    return name.removeprefix(":") or "the array"
