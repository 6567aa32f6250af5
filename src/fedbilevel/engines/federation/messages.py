"""What travels: names and arrays, nothing that could be run."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from fedbilevel.engines.protocol import Moment, PhaseReference

Parcel: TypeAlias = Mapping[str, np.ndarray]
"""Arrays by the path of their leaf."""


class RefusedError(ValueError):
    """A message that is not what was agreed upon.

    Example:
        >>> str(RefusedError("y is missing"))
        'y is missing'
    """


class Task(NamedTuple):
    """What the server asks of devices in one exchange.

    Attributes:
        run: the run it belongs to, as digits and letters.
        reference: which phase to carry out.
        moment: when in the run.
        seed: of the run's random draws.
        counted: for each enrolled device the exchanges it had counted in so far; a
            device goes on from what it kept after the last of them.
        downlink: all that reaches a device.

    Example:
        >>> Task._fields[0]
        'run'
    """

    run: str
    reference: PhaseReference
    moment: Moment
    seed: int
    counted: np.ndarray
    downlink: Parcel


def packed(tree: PyTree) -> dict[str, np.ndarray]:
    """Return a tree as arrays by path.

    Example:
        >>> packed({"x": 1.0, "y": np.ones(2)})
        {"['x']": array(1.), "['y']": array([1., 1.])}
    """
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def unpacked(parcel: Any, form: PyTree) -> PyTree:
    """Return the tree of a parcel, if it is exactly of a form.

    Args:
        parcel: whatever has come.
        form: a tree of shapes and types, such as `jax.eval_shape` returns.

    Raises:
        RefusedError: if a name, a shape or a type is another; says which.

    Example:
        >>> form = {"x": jax.ShapeDtypeStruct((2,), np.float32)}
        >>> unpacked({"['x']": np.ones(2)}, form)
        Traceback (most recent call last):
        ...
        fedbilevel.engines.federation.messages.RefusedError: ['x'] is float64[2] instead
        of float32[2]
    """
    if not isinstance(parcel, Mapping):
        raise RefusedError(f"a {type(parcel).__name__} came instead of arrays by name")
    wanted = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(form)
    }
    for name in wanted:
        if name not in parcel:
            raise RefusedError(f"{name or 'the array'} is missing")
    if len(parcel) > len(wanted):
        extra = next(name for name in parcel if name not in wanted)
        raise RefusedError(f"{str(extra)[:50]!r} was not asked for")
    leaves = []
    for name, leaf in wanted.items():
        array = parcel[name]
        # Subclasses may bring code of their own.
        if type(array) is not np.ndarray:
            raise RefusedError(f"{name} is a {type(array).__name__} and no array")
        if array.dtype != leaf.dtype or array.shape != leaf.shape:
            found, right = (f"{one.dtype}{list(one.shape)}" for one in (array, leaf))
            raise RefusedError(f"{name} is {found} instead of {right}")
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(form), leaves)
