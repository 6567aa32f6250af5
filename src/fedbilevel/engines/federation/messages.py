"""What travels: arrays by name, in bytes that can hold nothing else."""

import hashlib
from collections.abc import Mapping

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

DIGEST_BYTES = 32
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


class RefusedError(ValueError):
    """A message that is not what was agreed upon.

    Example:
        >>> str(RefusedError("y is missing"))
        'y is missing'
    """


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes: a digest, and then the safetensors format.

    Example:
        >>> decode(encode({"x": np.ones(2)}))
        {'x': array([1., 1.])}
    """
    body: bytes = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()}
    )
    return hashlib.sha256(body).digest() + body


def decode(message: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message.

    Of the input it needs no more memory than a few times its length.

    Raises:
        RefusedError: if it is anything else; says what.

    Example:
        >>> decode(b"no message")
        Traceback (most recent call last):
        ...
        fedbilevel.engines.federation.messages.RefusedError: it was damaged on its way
    """
    if type(message) is not bytes:
        raise RefusedError(f"it is a {type(message).__name__} and not bytes")
    digest, body = message[:DIGEST_BYTES], message[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise RefusedError("it was damaged on its way")
    try:
        parts = safetensors.deserialize(body)
    except safetensors.SafetensorError as error:
        # What it says may quote the sender at any length.
        said = " ".join(str(error).split())[:200]
        raise RefusedError(f"it holds no arrays: {said}") from None
    return {name: _array(**part) for name, part in parts}


def _array(dtype: str, shape: list[int], data: bytearray) -> np.ndarray:
    known = DTYPES.get(dtype)
    if known is None:
        raise RefusedError(f"it holds numbers of type {dtype}")
    if dtype == "BOOL" and data.translate(None, b"\0\1"):
        raise RefusedError("it holds truth values that are neither true nor false")
    try:
        # Of no numbers at all there are shapes that the format has and NumPy has not.
        return np.frombuffer(data, known).reshape(shape)
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
        fedbilevel.engines.federation.messages.RefusedError: ['x'] is float64[2] instead
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
            found, right = (f"{one.dtype}{list(one.shape)}" for one in (array, leaf))
            raise RefusedError(f"{_said(name)} is {found} instead of {right}")
    leaves = [arrays[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(form), leaves)


def _name(path: tuple[object, ...]) -> str:
    # A lone array has an empty path, and an empty name would be lost among others.
    return f":{jax.tree_util.keystr(path)}"


def _said(name: str) -> str:
    return name.removeprefix(":") or "the array"
