"""Checks of what an algorithm's functions return, with the phase's name in errors.

They look at types and shapes alone, so a compiled program makes them once, as it is
traced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.mathematics import tree


def check_algorithm(algorithm: Any) -> None:
    """Check that something is an algorithm that JAX can take apart.

    Raises:
        TypeError: if it is not.

    Example:
        >>> check_algorithm(dict())
        Traceback (most recent call last):
        ...
        TypeError: {} was given for an algorithm, but has no method init; give an object
        such as AutoFedBiO(rounds=300).
    """
    if isinstance(algorithm, type):
        raise TypeError(
            f"the class {algorithm.__name__} was given for an algorithm; give one with "
            "its hyperparameters: that class called with them."
        )
    if not isinstance(algorithm, FederatedAlgorithm):
        methods = ("init", "opening", "phases")
        (missing, *_) = [one for one in methods if not hasattr(algorithm, one)]
        raise TypeError(
            f"{algorithm!r} was given for an algorithm, but has no method {missing}; "
            "give an object such as AutoFedBiO(rounds=300)."
        )
    if any(leaf is algorithm for leaf in jax.tree.leaves(algorithm)):
        name = type(algorithm).__name__
        raise TypeError(
            f"{name} is not registered with JAX; put @register of "
            f"fedbilevel.algorithms above the @dataclass(frozen=True) of {name}."
        )


def check_first_state(algorithm: Any, returned: Any) -> None:
    """Check what `init` of an algorithm has returned.

    Raises:
        TypeError: if it is no pair of a server's and a private state.

    Example:
        >>> check_first_state("Mine", (1.0, ()))
        Traceback (most recent call last):
        ...
        TypeError: str.init returned a float as the server's state; return an object
        with x and y, such as a NamedTuple.
    """
    name = f"{type(algorithm).__name__}.init"
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"{name} returned {_kind(returned)}; return the server's state and what a "
            "device keeps: a pair, of which the second is () if devices keep nothing."
        )
    state = returned[0]
    if not hasattr(state, "x") or not hasattr(state, "y"):
        raise TypeError(
            f"{name} returned {_kind(state)} as the server's state; return an object "
            "with x and y, such as a NamedTuple."
        )


def check_phases(algorithm: Any, method: str, phases: Any) -> None:
    """Check what `opening` or `phases` of an algorithm has returned.

    Raises:
        TypeError: if it is no tuple of phases.

    Example:
        >>> check_phases("Mine", "phases", [1])
        Traceback (most recent call last):
        ...
        TypeError: str.phases returned a list with an int; return a tuple of Phase.
    """
    name = f"{type(algorithm).__name__}.{method}"
    cure = "return a tuple of Phase."
    if isinstance(phases, Phase) or not isinstance(phases, Sequence):
        raise TypeError(f"{name} returned {_kind(phases)}; {cure}")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise TypeError(
                f"{name} returned {_kind(phases)} with {_kind(phase)}; {cure}"
            )
        if type(phase.steps) is not int or phase.steps < 0:
            raise TypeError(
                f"{name} returned the phase {phase.name!r} with steps={phase.steps!r}; "
                "give a whole number."
            )


def check_finished(phase: Phase, returned: Any, private: Private) -> None:
    """Check what `finish` of a phase has returned.

    Args:
        phase: the phase.
        returned: by its `finish`.
        private: what the device had kept before.

    Raises:
        TypeError: if it is no upload, private state and report.

    Example:
        >>> from fedbilevel.algorithms.queries import ask
        >>> phase = ask("count", lambda s: s, lambda q, d, k: q, lambda s, m, k: s)
        >>> check_finished(phase, (1.0, (), {}), ())
        Traceback (most recent call last):
        ...
        TypeError: phase 'count': finish returned a float as the upload; return
        Upload((update of x, ...)).
    """
    where = f"phase {phase.name!r}: finish returned"
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise TypeError(
            f"{where} {_kind(returned)}; return three things: an Upload, what the "
            "device keeps, and a dictionary of what it reports."
        )
    upload, kept, info = returned
    if not isinstance(upload, Upload):
        raise TypeError(
            f"{where} {_kind(upload)} as the upload; return Upload((update of x, ...))."
        )
    if not isinstance(upload.update, tuple):
        raise TypeError(
            f"{where} an Upload whose update is {_kind(upload.update)}; give a tuple, "
            "with one entry for each variable."
        )
    if not isinstance(info, Mapping):
        raise TypeError(f"{where} {_kind(info)} as the report; return a dictionary.")
    wrong = _difference(kept, private)
    if wrong is not None:
        raise TypeError(
            f"{where} another private state than init gave: {wrong}. Let both have the "
            "same form; () if devices keep nothing."
        )


def check_next_state(phase: Phase, following: Any, state: Server) -> None:
    """Check what `server` of a phase has returned.

    Args:
        phase: the phase.
        following: the server's state as its `server` returned it.
        state: the state before.

    Raises:
        TypeError: if the form of the state has changed.

    Example:
        >>> from fedbilevel.algorithms.queries import ask
        >>> phase = ask("count", lambda s: s, lambda q, d, k: q, lambda s, m, k: s)
        >>> check_next_state(phase, {"x": jnp.zeros(2)}, {"x": jnp.zeros(3)})
        Traceback (most recent call last):
        ...
        TypeError: phase 'count': server returned another state than it was given:
        ['x'] was float32[3] and is float32[2]. Let it keep its form.
    """
    wrong = _difference(following, state)
    if wrong is not None:
        raise TypeError(
            f"phase {phase.name!r}: server returned another state than it was given: "
            f"{wrong}. Let it keep its form."
        )


def _difference(now: PyTree, before: PyTree) -> str | None:
    """Return where two trees differ in form, in a few words."""
    if str(jax.tree.structure(now)) != str(jax.tree.structure(before)):
        return f"it was {_short(before)} and is {_short(now)}"
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(now), jax.tree.leaves(before), strict=True
    )
    for (path, leaf), old in pairs:
        alike = jnp.shape(leaf) == jnp.shape(old)
        if not alike or not _may_become(jnp.result_type(leaf), jnp.result_type(old)):
            name = jax.tree_util.keystr(path) or "it"
            return f"{name} was {tree.form(old)} and is {tree.form(leaf)}"
    return None


def _may_become(dtype: Any, other: Any) -> bool:
    """Return whether numbers of a type keep what they are in another.

    Widths may differ: engines cast to the width that there was.
    """
    if jnp.issubdtype(other, jnp.inexact):
        return bool(jnp.issubdtype(dtype, jnp.number))
    if jnp.issubdtype(other, jnp.integer):
        return bool(jnp.issubdtype(dtype, jnp.integer))
    return bool(dtype == other)


def _short(variable: PyTree) -> str:
    if not jax.tree.leaves(variable):
        return "empty"
    words = tree.forms(variable)
    return words if len(words) <= 120 else f"{words[:117]}..."


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if type(value) is tuple:
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
