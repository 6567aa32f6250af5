"""What travels: arrays by name, in bytes that can hold nothing else.

A message is a checksum and then a file of the safetensors format, which any reader of
that format can read. It is written and read here since the library copies each message
three times, which for 50 MB takes longer than sending it; a test holds both to each
other.
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
"""Bytes; a header has about a hundred for each array."""
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{
        f"{letter}{bits}": np.dtype(f"{kind}{bits}")
        for letter, kind, widths in (
            ("F", "float", (16, 32, 64)),
            ("I", "int", (8, 16, 32, 64)),
            ("U", "uint", (8, 16, 32, 64)),
        )
        for bits in widths
    },
}
"""What the format calls each type of number that may travel."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes.

    Example:
        >>> decode(encode({"x": np.ones(2)}))
        {'x': array([1., 1.])}
    """
    (message,) = encode_each([arrays])
    return message


def encode_each(several: Sequence[Mapping[str, np.ndarray]]) -> list[bytes]:
    """Return messages that differ in their last array only.

    All but the last are read once, however many messages there are.

    Args:
        several: arrays by name, in the same order, of the same shapes and types.

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
    words = json.dumps(header).encode()
    body = [LENGTH.pack(len(words)), words, *buffers[:-1]]
    checksum = 0
    for part in body:
        checksum = zlib.crc32(part, checksum)
    messages = []
    for one in several:
        last = [_bytes(array) for array in list(one.values())[-1:]]
        whole = checksum
        for part in last:
            whole = zlib.crc32(part, whole)
        messages.append(b"".join([CHECKSUM.pack(whole), *body, *last]))
    return messages


def _bytes(array: np.ndarray) -> Any:
    """Return an array's bytes, without a copy where it lies in order."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8)


def decode(message: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message; they are views of it.

    Raises:
        RefusedError: if it is anything else; says what.

    Example:
        >>> decode(b"surely no message")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: it was damaged on its way
    """
    if type(message) is not bytes:
        raise RefusedError(f"it is a {type(message).__name__} and not bytes")
    whole = memoryview(message)
    prefix = CHECKSUM.size + LENGTH.size
    if len(whole) < prefix or CHECKSUM.unpack_from(whole) != (
        zlib.crc32(whole[CHECKSUM.size :]),
    ):
        raise RefusedError("it was damaged on its way")
    (length,) = LENGTH.unpack_from(whole, CHECKSUM.size)
    if length > min(LONGEST_HEADER, len(whole) - prefix):
        raise RefusedError("its header is too long")
    try:
        header = json.loads(bytes(whole[prefix : prefix + length]))
    except (ValueError, RecursionError):
        raise RefusedError("its header cannot be read") from None
    if type(header) is not dict:
        raise RefusedError("its header is no table")
    return dict(_arrays(header, whole[prefix + length :]))


def _arrays(
    header: dict[str, Any], data: memoryview
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays that lie one after another and leave nothing over."""
    expected = 0
    for name, entry in header.items():
        if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise RefusedError(f"{name[:50]!r} is not described as an array")
        dtype, shape = entry["dtype"], entry["shape"]
        known = DTYPES.get(dtype) if type(dtype) is str else None
        if known is None:
            raise RefusedError(f"{name[:50]!r} has numbers of another type")
        if type(shape) is not list or len(shape) > 32:
            raise RefusedError(f"{name[:50]!r} has no shape")
        if not all(type(one) is int and 0 <= one < 2**63 for one in shape):
            raise RefusedError(f"{name[:50]!r} has no shape")
        end = expected + prod(shape) * known.itemsize
        if entry["data_offsets"] != [expected, end] or end > len(data):
            raise RefusedError(f"{name[:50]!r} does not lie where it should")
        yield name, _array(data[expected:end], known, shape)
        expected = end
    if expected != len(data):
        raise RefusedError("more came than its header describes")


def _array(data: memoryview, dtype: np.dtype, shape: list[int]) -> np.ndarray:
    numbers = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype)
    if dtype.kind == "b" and np.any(numbers > 1):
        raise RefusedError("it holds truth values that are neither true nor false")
    try:
        # Of no numbers at all there are shapes that the format has and NumPy has not.
        return numbers.view(dtype).reshape(shape)
    except ValueError:
        raise RefusedError("it holds an array of an impossible shape") from None


def packed(tree: PyTree) -> dict[str, np.ndarray]:
    """Return a tree as arrays by path.

    Example:
        >>> packed({"x": 1.0, "y": np.ones(2)})
        {":['x']": array(1.), ":['y']": array([1., 1.])}
    """
    return {
        _name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def unpacked(arrays: Mapping[str, np.ndarray], form: PyTree) -> PyTree:
    """Return the tree of arrays by path, if they are exactly of a form.

    Args:
        arrays: whatever has come.
        form: a tree of shapes and types, such as `jax.eval_shape` returns.

    Raises:
        RefusedError: if a name, a shape or a type is another; says which.

    Example:
        >>> form = {"x": jax.ShapeDtypeStruct((2,), np.float32)}
        >>> unpacked({":['x']": np.ones(2)}, form)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: ['x'] is float64[2] instead
        of float32[2]
    """
    paths = jax.tree_util.tree_leaves_with_path(form)
    wanted = {_name(path): leaf for path, leaf in paths}
    for name in wanted:
        if name not in arrays:
            raise RefusedError(f"{_said(name)} is missing")
    for name in arrays:
        if name not in wanted:
            raise RefusedError(f"{_said(name)[:50]!r} was not asked for")
    for name, leaf in wanted.items():
        array = arrays[name]
        if array.dtype != leaf.dtype or array.shape != leaf.shape:
            found, right = map(tree.form, (array, leaf))
            raise RefusedError(f"{_said(name)} is {found} instead of {right}")
    leaves = [arrays[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(form), leaves)


def _name(path: tuple[object, ...]) -> str:
    # A lone array has an empty path, and an empty name would be lost among others.
    return f":{jax.tree_util.keystr(path)}"


def _said(name: str) -> str:
    return name.removeprefix(":") or "the array"
