"""What a run was asked to do, in words that two runs can be compared by."""

import functools
import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def describe(value: Any) -> Any:
    """Return a value as plain words and numbers, the same in every process.

    A function is described by its code and all it refers to, an array by its type and a
    digest, any other object by what it holds.

    Example:
        >>> from fedbilevel import UniformSample
        >>> describe(UniformSample(3))
        {'class': 'UniformSample', 'devices': 3}
    """
    return _describe(value, ())


def describe_arrays(arrays: PyTree) -> dict[str, str]:
    """Return each array's type and a digest of its numbers, by its path in the tree.

    Example:
        >>> list(describe_arrays({"a": np.zeros(2)}))
        ["['a']"]
    """
    return {
        jax.tree_util.keystr(path) or "array": _array(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    }


def fingerprint(value: Any) -> bytes:
    """Return a digest of a value's description.

    Example:
        >>> fingerprint([1, 2]) == fingerprint([1, 3])
        False
    """
    words = json.dumps(describe(value), sort_keys=True)
    return hashlib.sha256(words.encode()).digest()


def differences(then: Any, now: Any) -> list[str]:
    """Return where two descriptions differ, each in a few words and only once.

    Example:
        >>> differences({"seed": 1, "rate": 0.1}, {"seed": 1, "rate": 0.2})
        ['rate was 0.1 and is 0.2']
    """
    found: dict[str, str] = {}
    for name, change in _differences(then, now, ""):
        # A loss is also part of the oracles made from it: its first place is enough.
        found.setdefault(f"{name.rpartition('.')[2]} {change}", f"{name} {change}")
    return list(found.values())


def _differences(then: Any, now: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(then, dict) and isinstance(now, dict):
        found = []
        for key in dict.fromkeys([*then, *now]):
            path = f"{name}.{key}" if name else str(key)
            found += _differences(then.get(key), now.get(key), path)
        return found
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [d for i, pair in pairs for d in _differences(*pair, f"{name}[{i}]")]
    return [] if then == now else [(name, f"was {_short(then)} and is {_short(now)}")]


def _short(description: Any) -> str:
    words = str(description)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _describe(value: Any, inside: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if id(value) in inside:
        return "itself"
    inside = *inside, id(value)
    if isinstance(value, Mapping):
        return {str(key): _describe(one, inside) for key, one in value.items()}
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "given": value.args, **value.keywords}
        return _describe(parts, inside)
    if isinstance(value, types.MethodType):
        parts = {"method": value.__func__, "of": value.__self__}
        return _describe(parts, inside)
    wrapped = getattr(value, "__wrapped__", None)
    if callable(wrapped) and _is_of_a_library(value):
        return _describe(wrapped, inside)
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if isinstance(value, tuple | list):
        return [_describe(one, inside) for one in value]
    if isinstance(value, type | types.ModuleType):
        return {"name": value.__name__}
    return {"class": type(value).__name__, **_held(value, inside)}


def _is_of_a_library(wrapper: Any) -> bool:
    """Return whether a wrapper is a library's, such as `jax.jit` or a type checker.

    What such a wrapper holds is the library's business: it says nothing about the
    run, and following it through every function a problem calls can take minutes.
    """
    if not isinstance(wrapper, types.FunctionType):
        return not isinstance(wrapper, type)
    defined_in = str(wrapper.__globals__.get("__name__"))
    return defined_in.partition(".")[0] != wrapper.__module__.partition(".")[0]


def _held(value: Any, inside: tuple[int, ...]) -> dict[str, Any]:
    if is_dataclass(value):
        held = {one.name: getattr(value, one.name) for one in fields(value)}
    else:
        held = getattr(value, "__dict__", {})
    return {name: _describe(one, inside) for name, one in held.items()}


def _function(value: types.FunctionType, inside: tuple[int, ...]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "function": value.__qualname__,
        "code": _digest(_code(value.__code__)),
        "defaults": _describe(value.__defaults__ or (), inside),
        **_describe(value.__kwdefaults__ or {}, inside),
    }
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            described[name] = _describe(cell.cell_contents, inside)
        except ValueError:  # not yet assigned
            continue
    for name in _names(value.__code__):
        used = value.__globals__.get(name)
        if _is_own(used, value):
            described[name] = _describe(used, inside)
    return described


def _names(code: types.CodeType) -> list[str]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def _is_own(used: Any, value: types.FunctionType) -> bool:
    """Whether a global belongs to the user's code, and not to a library's."""
    if used is None or isinstance(used, type | types.ModuleType):
        return False
    module = getattr(used, "__module__", None)
    if not callable(used) or module is None:
        return True
    return bool(module.partition(".")[0] == value.__module__.partition(".")[0])


def _array(array: Any) -> str:
    if isinstance(array, jax.Array) and jnp.issubdtype(
        array.dtype, jax.dtypes.prng_key
    ):
        array = jax.random.key_data(array)
    array = np.asarray(array)
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
    # 128 bits: a site takes tasks with one fingerprint for the same, and of 48 bits a
    # server could find two settings with one digest.
    return hashlib.sha256(content).hexdigest()[:32]
