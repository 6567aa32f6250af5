"""Checks of the values that an algorithm's functions return.

The checks read types and shapes alone, so a compiled program makes them once, while it
is traced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import is_tensor


def check_algorithm(algorithm: Any) -> None:
    """Check that an object is an algorithm and registered with JAX.

    Raises:
        TypeError: if the object is no algorithm, or not registered.

    Example:
        >>> check_algorithm(dict())
        Traceback (most recent call last):
        ...
        TypeError: algorithm is {}, which has no method init. Pass an algorithm such as
        AutoFedBiO(rounds=300).
    """
    if isinstance(algorithm, type):
        raise TypeError(
            f"algorithm is the class {algorithm.__name__}. Pass an instance: call the "
            "class with its hyperparameters."
        )
    if not isinstance(algorithm, FederatedAlgorithm):
        methods = ("init", "opening", "phases")
        (missing, *_) = [name for name in methods if not hasattr(algorithm, name)]
        raise TypeError(
            f"algorithm is {algorithm!r}, which has no method {missing}. Pass an "
            "algorithm such as AutoFedBiO(rounds=300)."
        )
    if any(leaf is algorithm for leaf in jax.tree.leaves(algorithm)):
        name = type(algorithm).__name__
        raise TypeError(
            f"{name} is not registered with JAX. Put @register of "
            f"fedbilevel.algorithms above the @dataclass(frozen=True) of {name}."
        )


def check_first_state(algorithm: Any, returned: Any) -> None:
    """Check the value that `init` of an algorithm returned.

    Raises:
        TypeError: unless the value is a pair of server state and private state.

    Example:
        >>> check_first_state("Mine", (1.0, ()))
        Traceback (most recent call last):
        ...
        TypeError: str.init returned a float as the server state. Return an object with
        x and y, such as a NamedTuple.
    """
    name = f"{type(algorithm).__name__}.init"
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"{name} returned {_kind(returned)}. Return a pair: the server state and "
            "the private state of a device, which is () if devices keep no state."
        )
    state = returned[0]
    if not hasattr(state, "x") or not hasattr(state, "y"):
        raise TypeError(
            f"{name} returned {_kind(state)} as the server state. Return an object "
            "with x and y, such as a NamedTuple."
        )


def check_phases(algorithm: Any, method: str, phases: Any) -> None:
    """Check the value that `opening` or `phases` of an algorithm returned.

    Raises:
        TypeError: unless the value is a tuple of phases.

    Example:
        >>> check_phases("Mine", "phases", [1])
        Traceback (most recent call last):
        ...
        TypeError: str.phases returned a list with an int. Return a tuple of Phase.
    """
    name = f"{type(algorithm).__name__}.{method}"
    remedy = "Return a tuple of Phase."
    if isinstance(phases, Phase) or not isinstance(phases, Sequence):
        raise TypeError(f"{name} returned {_kind(phases)}. {remedy}")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise TypeError(
                f"{name} returned {_kind(phases)} with {_kind(phase)}. {remedy}"
            )
        if type(phase.steps) is not int or phase.steps < 0:
            raise TypeError(
                f"{name} returned the phase {phase.name!r} with steps={phase.steps!r}. "
                "Pass a whole number, at least 0."
            )


def check_finished(phase: Phase, returned: Any, private: Private) -> None:
    """Check the value that `finish` of a phase returned.

    Args:
        phase: the phase.
        returned: return value of its `finish`.
        private: private state of the device before the phase.

    Raises:
        TypeError: unless the value has an upload, a private state and a report.

    Example:
        >>> from fedbilevel.algorithms.queries import ask
        >>> phase = ask("count", lambda s: s, lambda q, d, k: q, lambda s, m, k: s)
        >>> check_finished(phase, (1.0, (), {}), ())
        Traceback (most recent call last):
        ...
        TypeError: Phase 'count': finish returned a float as the upload. Return
        Upload((update of x, ...)).
    """
    where = f"Phase {phase.name!r}: finish returned"
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise TypeError(
            f"{where} {_kind(returned)}. Return a tuple of 3: an Upload, the private "
            "state of the device, and a dictionary of reported values."
        )
    upload, state, info = returned
    if not isinstance(upload, Upload):
        raise TypeError(
            f"{where} {_kind(upload)} as the upload. Return Upload((update of x, ...))."
        )
    if not isinstance(upload.update, tuple):
        raise TypeError(
            f"{where} an Upload whose update is {_kind(upload.update)}. Pass a tuple "
            "with one entry for each variable."
        )
    if not isinstance(info, Mapping):
        raise TypeError(f"{where} {_kind(info)} as the report. Return a dictionary.")
    difference = _difference(state, private)
    if difference is not None:
        raise TypeError(
            f"{where} a private state of another form than init: {difference}. Return "
            "the same form in both; () if devices keep no state."
        )


def check_next_state(phase: Phase, following: Any, state: Server) -> None:
    """Check the server state that `server` of a phase returned.

    Args:
        phase: the phase.
        following: server state that its `server` returned.
        state: server state before the phase.

    Raises:
        TypeError: if the form of the state has changed.

    Example:
        >>> from fedbilevel.algorithms.queries import ask
        >>> phase = ask("count", lambda s: s, lambda q, d, k: q, lambda s, m, k: s)
        >>> check_next_state(phase, {"x": jnp.zeros(2)}, {"x": jnp.zeros(3)})
        Traceback (most recent call last):
        ...
        TypeError: Phase 'count': server returned a state of another form than its
        input: ['x'] was float32[3] and is float32[2]. Keep the form of the state.
    """
    difference = _difference(following, state)
    if difference is not None:
        raise TypeError(
            f"Phase {phase.name!r}: server returned a state of another form than its "
            f"input: {difference}. Keep the form of the state."
        )


def _difference(after: PyTree, before: PyTree) -> str | None:
    """Return a short description of the first difference in form, or None."""
    if str(jax.tree.structure(after)) != str(jax.tree.structure(before)):
        return f"it was {_short(before)} and is {_short(after)}"
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(after), jax.tree.leaves(before), strict=True
    )
    for (path, leaf), old in pairs:
        alike = np.shape(leaf) == np.shape(old)
        if not alike or not _can_cast(_dtype(leaf), _dtype(old)):
            name = jax.tree_util.keystr(path) or "it"
            return f"{name} was {tree.form(old)} and is {tree.form(leaf)}"
    return None


def _dtype(leaf: Any) -> np.dtype:
    if is_tensor(leaf):
        # Types of tensors have the names of NumPy's types, and bfloat16.
        return jnp.dtype(str(leaf.dtype).removeprefix("torch."))
    return jnp.result_type(leaf)


def _can_cast(dtype: Any, other: Any) -> bool:
    """Return whether a cast to another dtype keeps values up to their precision.

    Widths may differ: engines cast to the width of the state before.
    """
    if jnp.issubdtype(other, jnp.inexact):
        return bool(jnp.issubdtype(dtype, jnp.number))
    if jnp.issubdtype(other, jnp.integer):
        return bool(jnp.issubdtype(dtype, jnp.integer))
    return bool(dtype == other)


def _short(variable: PyTree) -> str:
    if not jax.tree.leaves(variable):
        return "empty"
    text = tree.forms(variable)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if type(value) is tuple:
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
