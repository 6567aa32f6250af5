"""Screening of uploads: the rule by which every engine excludes bad uploads."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedbilevel.algorithms.protocol import Info
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import accumulator
from fedbilevel.mathematics import tree
from fedbilevel.transforms.fixed_point import NOT_FINITE


def acceptable(
    uploads: PyTree,
    infos: Info,
    present: Bool[Array | np.ndarray, "devices"],
    limits: Limits,
) -> Bool[Array, "devices"]:
    """Return a mask of the stacked uploads that may enter the mean.

    A device is accepted if it is present, if its upload and its info are finite, and if
    the Euclidean norm of its upload is at most the limit. The limit does not apply to
    info: a number of local steps is no part of the norm. Info that is not finite
    excludes its device, since info is averaged too. The distance limit is applied
    later.

    Args:
        uploads: uploads as the server averages them, along a leading axis.
        infos: values that the devices report, along a leading axis.
        present: mask of the devices that are not absent.
        limits: limits, of which only the norm limit is applied here.

    Example:
        >>> import jax.numpy as jnp
        >>> uploads = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [1e30, 0.0]])
        >>> acceptable(uploads, {}, jnp.array([True] * 3), Limits(norm=1e6))
        Array([ True, False, False], dtype=bool)
    """
    allowed: Bool[Array, "devices"] = acceptable_in(
        jnp, uploads, infos, present, limits.norm
    )
    return allowed


def is_acceptable(upload: PyTree, info: Info, limits: Limits) -> bool:
    """Return whether one device's upload may enter the mean: `acceptable` in NumPy.

    Args:
        upload: arrays of the host, as the server averages them.
        info: values that the device reports.
        limits: limits, of which only the norm limit is applied here.

    Example:
        >>> is_acceptable(np.array([3.0, 4.0]), {"steps": 9}, Limits(norm=8.0))
        True
        >>> is_acceptable(np.array([1.0, np.nan]), {}, Limits())
        False
    """
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(info)):
        return False
    norm_limit = limits.norm
    # This test takes one pass over the numbers; `acceptable_in` takes several. A sum of
    # squares is finite only if all numbers are, and underflow removes less than the
    # smallest normal number from each square. Uploads near the limit, or with squares
    # beyond the floating-point range, go through `acceptable_in`.
    with np.errstate(all="ignore"):
        squares = 0.0
        if any(_lacks_finite(leaf) for leaf in jax.tree.leaves(upload)):
            return False
        for leaf in jax.tree.leaves(upload):
            flat = np.asarray(leaf, accumulator(leaf)).ravel()
            lost = flat.size * float(np.finfo(flat.dtype).tiny)
            squares += float(np.dot(flat, flat)) + lost
        clear = np.inf if norm_limit is None else 0.9 * float(norm_limit)
        if np.sqrt(squares) < clear:
            return True
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], upload)
        return bool(acceptable_in(np, stacked, {}, np.array([True]), norm_limit)[0])


def distances(
    library: Any,
    travel: tuple[PyTree, ...],
    allowed: Bool[Array | np.ndarray, "devices"],
) -> Any:
    """Return the distance of each device's upload from the server's point.

    Args:
        library: `numpy` or `jax.numpy`.
        travel: change of each variable, with all devices along a leading axis.
        allowed: mask of the devices whose uploads are finite.

    Returns:
        Distances, one row for each variable and one column for each device.

    Example:
        >>> way = np.array([[3.0, 4.0], [0.0, 0.0]]), np.ones((2, 1))
        >>> distances(np, way, np.array([True, True]))
        array([[5., 0.],
               [1., 1.]])
    """
    lengths = []
    for variable in travel:
        rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(variable)]
        lengths.append(_norms(library, rows, allowed))
    widest = np.result_type(*(row.dtype for row in lengths))
    return library.stack([row.astype(widest) for row in lengths])


def acceptable_in(
    library: Any,
    uploads: PyTree,
    infos: Info,
    present: Bool[Array | np.ndarray, "devices"],
    norm_limit: tree.Scalar | None,
) -> Any:
    """Return a mask of the uploads that may enter the mean, in JAX or NumPy.

    Args:
        library: `numpy` or `jax.numpy`.
        uploads: uploads as the server averages them, along a leading axis.
        infos: values that the devices report, along a leading axis.
        present: mask of the devices that are not absent.
        norm_limit: largest accepted Euclidean norm of an upload; None for no limit.

    Example:
        >>> present = np.array([True, False])
        >>> acceptable_in(np, np.ones((2, 3)), {}, present, norm_limit=2.0)
        array([ True, False])
    """
    rows, info_rows = (
        [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(stacked)]
        for stacked in (uploads, infos)
    )
    # The largest entry is not used: on a CPU, XLA takes ten times as long to find it.
    finite = [
        library.all(_is_finite(library, part), axis=1) for part in (*rows, *info_rows)
    ]
    allowed = reduce(library.logical_and, finite, present)
    if norm_limit is None:
        return allowed
    return allowed & (_norms(library, rows, allowed) <= norm_limit)


def _lacks_finite(leaf: Any) -> bool:
    array = np.asarray(leaf)
    return array.dtype == np.int32 and bool(np.any(array == NOT_FINITE))


def _is_finite(library: Any, part: Any) -> Any:
    if part.dtype == np.int32:
        return part != NOT_FINITE
    return library.isfinite(part)


def _norms(
    library: Any, rows: list[Any], allowed: Bool[Array | np.ndarray, "devices"]
) -> Any:
    """Return the Euclidean norm of each upload, if it is finite."""
    widest = np.result_type(*map(accumulator, rows))
    sizes = [library.abs(part.astype(widest)) for part in rows]
    peaks = [library.max(part, axis=1, initial=0) for part in sizes]
    # Entries are divided by the largest, since the square of 1e30 exceeds single
    # precision. The divisor is at most 2e28 in single precision, since XLA multiplies
    # by its reciprocal and rounds that of 1e38 to zero.
    largest = np.array(np.finfo(widest).max ** 0.75, widest)
    peak = library.clip(reduce(library.maximum, peaks), 1 / largest, largest)
    unit = library.where(allowed, peak, 1)
    squares = [library.sum((part / unit[:, None]) ** 2, axis=1) for part in sizes]
    return unit * library.sqrt(reduce(library.add, squares))
