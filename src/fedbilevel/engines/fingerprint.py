"""Descriptions of the arguments of a run, by which two runs are compared."""

import functools
import hashlib
import json
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.mathematics.arrays import is_tensor, on_host


def describe(value: Any) -> Any:
    """Return a description of plain text and numbers, the same in every process.

    A function is described by its code and all that it refers to, an array by its dtype
    and a digest, any other object by its attributes.

    Example:
        >>> from fedbilevel import UniformSample
        >>> describe(UniformSample(3))
        {'class': 'UniformSample', 'devices': 3}
    """
    return _describe(value, ())


def describe_arrays(arrays: PyTree) -> dict[str, str]:
    """Return the dtype and a digest of each array, by its path in the tree.

    The path of an array that is no tree is empty.

    Example:
        >>> list(describe_arrays({"a": np.zeros(2)}))
        ["['a']"]
    """
    return {
        jax.tree_util.keystr(path): _array(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    }


def fingerprint(value: Any) -> bytes:
    """Return a digest of a value's description.

    Example:
        >>> fingerprint([1, 2]) == fingerprint([1, 3])
        False
    """
    text = json.dumps(describe(value), sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def differences(before: Any, after: Any) -> list[str]:
    """Return the differences of two descriptions, each once and short.

    Example:
        >>> differences({"seed": 1, "rate": 0.1}, {"seed": 1, "rate": 0.2})
        ['rate was 0.1 and is 0.2']
    """
    result: dict[str, str] = {}
    for name, old, new in _differences(before, after, ""):
        # A loss is also part of the oracles derived from it: report it once.
        result.setdefault(f"{_last(name)} {old} {new}", _sentence(name, old, new))
    return list(dict.fromkeys(result.values()))


def _differences(old: Any, new: Any, name: str) -> list[tuple[str, Any, Any]]:
    """Return the names and both descriptions of all parts that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        if _label(old) != _label(new):
            return [(name, old, new)]
        result = []
        for key in dict.fromkeys([*old, *new]):
            # Paths of arrays begin with a dot, or are empty.
            path = ".".join(filter(None, [name, str(key).lstrip(".")]))
            result += _differences(old.get(key), new.get(key), path)
        return result
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for i, pair in pairs for d in _differences(*pair, f"{name}[{i}]")]
    return [] if old == new else [(name, old, new)]


def _sentence(name: str, old: Any, new: Any) -> str:
    """Return a difference without digests, which mean nothing to a reader."""
    if _last(name) == "code":
        return f"the code of {name.rpartition('.')[0] or 'the function'} has changed"
    before, after = _short(old), _short(new)
    if before == after:
        return f"{name} has other values"
    return f"{name} was {before} and is {after}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _label(description: dict[str, Any]) -> Any:
    """Return the name of the class or function that a description is of."""
    return description.get("class") or description.get("function")


def _short(description: Any) -> str:
    if isinstance(description, dict) and _label(description):
        description = _label(description)
    text = re.sub(r" #[0-9a-f]{32}\b", "", str(description))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _describe(value: Any, inside: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array) or is_tensor(value):
        return _array(value)
    if id(value) in inside:
        return "itself"
    inside = *inside, id(value)
    if isinstance(value, Mapping):
        return {str(key): _describe(item, inside) for key, item in value.items()}
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "given": value.args, **value.keywords}
        return _describe(parts, inside)
    if isinstance(value, types.MethodType):
        parts = {"method": value.__func__, "of": value.__self__}
        return _describe(parts, inside)
    if _is_module(value):
        values = {"architecture": repr(value), **value.state_dict()}
        return {"class": type(value).__name__, **_describe(values, inside)}
    if isinstance(value, Described):
        return _describe(value.fingerprint_parts(), inside)
    wrapped = getattr(value, "__wrapped__", None)
    if callable(wrapped) and _is_library_wrapper(value):
        return _describe(wrapped, inside)
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if isinstance(value, tuple | list):
        return [_describe(item, inside) for item in value]
    if isinstance(value, type | types.ModuleType):
        return {"name": value.__name__}
    return {"class": type(value).__name__, **_attributes(value, inside)}


@runtime_checkable
class Described(Protocol):
    """An object that names what a run depends on."""

    def fingerprint_parts(self) -> Mapping[str, Any]:
        """Return numbers, texts and arrays by name."""


def _is_module(value: Any) -> bool:
    """Return whether a value is a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_library_wrapper(value: Any) -> bool:
    """Return whether a library wraps a function: `jax.jit`, or a type checker.

    Attributes of these wrappers do not describe the run, and following them through
    every function of a problem can take minutes.
    """
    if not isinstance(value, types.FunctionType):
        return not isinstance(value, type)
    defined_in = str(value.__globals__.get("__name__"))
    return defined_in.partition(".")[0] != value.__module__.partition(".")[0]


def _attributes(value: Any, inside: tuple[int, ...]) -> dict[str, Any]:
    if is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        attributes = getattr(value, "__dict__", {})
    return {name: _describe(item, inside) for name, item in attributes.items()}


def _function(value: types.FunctionType, inside: tuple[int, ...]) -> dict[str, Any]:
    description: dict[str, Any] = {
        "function": value.__qualname__,
        "code": _digest(_code(value.__code__)),
        "defaults": _describe(value.__defaults__ or (), inside),
        **_describe(value.__kwdefaults__ or {}, inside),
    }
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            description[name] = _describe(cell.cell_contents, inside)
        except ValueError:  # not yet assigned
            continue
    for name in _names(value.__code__):
        target = value.__globals__.get(name)
        if _is_user_code(target, value):
            description[name] = _describe(target, inside)
    return description


def _names(code: types.CodeType) -> list[str]:
    nested = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return [*code.co_names, *(name for item in nested for name in _names(item))]


def _is_user_code(target: Any, value: types.FunctionType) -> bool:
    """Return whether a global belongs to the user's code and not to a library."""
    if target is None or isinstance(target, type | types.ModuleType):
        return False
    if _is_module(target) or isinstance(target, Described):
        return True
    module = getattr(target, "__module__", None)
    if not callable(target) or module is None:
        return True
    return bool(module.partition(".")[0] == value.__module__.partition(".")[0])


def _array(array: Any) -> str:
    if isinstance(array, jax.Array) and jnp.issubdtype(
        array.dtype, jax.dtypes.prng_key
    ):
        array = jax.random.key_data(array)
    array = np.asarray(on_host(array))
    shape = "×".join(map(str, array.shape)) or "scalar"
    if array.size == 1:
        return f"{array.dtype} {array.item()}"
    return f"{array.dtype} {shape} #{_digest(np.ascontiguousarray(array).tobytes())}"


def _code(code: types.CodeType) -> bytes:
    constants = [
        _code(item) if isinstance(item, types.CodeType) else repr(item).encode()
        for item in code.co_consts
        # The order of a frozenset differs between processes.
        if not isinstance(item, frozenset)
    ]
    return b"|".join([code.co_code, *(n.encode() for n in code.co_names), *constants])


def _digest(content: bytes) -> str:
    # A site treats tasks with equal fingerprints as the same task. The digest has 128
    # bits, because with 48 bits a server could find two settings with one digest.
    return hashlib.sha256(content).hexdigest()[:32]
