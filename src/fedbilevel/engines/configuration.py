"""What a run was asked to do, in words that two runs can be compared by."""

import hashlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def describe(value: Any) -> Any:
    """Return a value as plain words and numbers, the same in every process.

    A function is described by its name and code, an array by its type and a digest.

    Example:
        >>> from fedbilevel import UniformSample
        >>> describe(UniformSample(3))
        {'class': 'UniformSample', 'devices': 3}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: describe(getattr(value, one.name)) for one in fields(value)}
        return {"class": type(value).__name__, **named}
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return {
            "function": value.__qualname__,
            "code": _digest(_code(value.__code__)),
            # A function that calls itself by name closes over itself.
            "closed_over": [describe(one) for one in cells if one is not value],
            "defaults": describe(value.__defaults__ or ()),
        }
    if isinstance(value, Mapping):
        return {str(key): describe(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [describe(one) for one in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return describe_arrays(value)
    return {"class": type(value).__qualname__}


def describe_arrays(arrays: PyTree) -> dict[str, str]:
    """Return each array's type and a digest of its numbers, by its path in the tree.

    Example:
        >>> list(describe_arrays({"a": np.zeros(2)}))
        ["['a']"]
    """
    return {
        jax.tree_util.keystr(path) or "array": _array(np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    }


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """Return where two descriptions differ, each in a few words.

    Example:
        >>> differences({"seed": 1, "rate": 0.1}, {"seed": 1, "rate": 0.2})
        ['rate was 0.1 and is 0.2']
    """
    if isinstance(then, dict) and isinstance(now, dict):
        found = []
        for key in dict.fromkeys([*then, *now]):
            path = f"{name}.{key}" if name else str(key)
            found += differences(then.get(key), now.get(key), path)
        return found
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [d for i, pair in pairs for d in differences(*pair, f"{name}[{i}]")]
    return [] if then == now else [f"{name} was {then} and is {now}"]


def _array(array: np.ndarray) -> str:
    shape = "×".join(map(str, array.shape)) or "scalar"
    if array.size == 1:
        return f"{array.dtype} {array.item()}"
    return f"{array.dtype} {shape} #{_digest(np.ascontiguousarray(array).tobytes())}"


def _code(code: types.CodeType) -> bytes:
    constants = [
        _code(one) if isinstance(one, types.CodeType) else repr(one).encode()
        for one in code.co_consts
        if not isinstance(one, frozenset)  # whose order is not the same everywhere
    ]
    return b"|".join([code.co_code, *(n.encode() for n in code.co_names), *constants])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
