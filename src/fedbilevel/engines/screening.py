"""The rule about bad numbers: which uploads enter the mean, on every engine."""

import logging
from collections.abc import Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.algorithms.protocol import Info
from fedbilevel.engines.exclusions import ExclusionCounts
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.mean import accumulator
from fedbilevel.engines.protocol import Report
from fedbilevel.mathematics import tree

logger = logging.getLogger("fedbilevel")
MOST_NAMED = 20
"""Devices that one warning names."""


class NoUploadsError(ArithmeticError):
    """A run stops because no device's upload could be used.

    Example:
        >>> str(NoUploadsError("round 3: all 2 devices were left out"))
        'round 3: all 2 devices were left out'
    """


def acceptable(
    uploads: PyTree,
    infos: Info,
    present: Bool[Array, "devices"],
    limits: Limits,
) -> Bool[Array, "devices"]:
    """Return which of the stacked uploads may enter the mean, however far they went.

    A device counts if it is present, if its upload and its info are finite, and if the
    Euclidean norm of its upload is at most the limit. The limit does not apply to info:
    a number of local steps is no part of the norm. Info that is not finite excludes its
    device, since info is averaged too.

    Args:
        uploads: along a leading axis, as the server averages them.
        infos: what the devices report, along a leading axis.
        present: which devices are not absent.
        limits: of which the norm's is applied here.

    Example:
        >>> import jax.numpy as jnp
        >>> uploads = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [1e30, 0.0]])
        >>> acceptable(uploads, {}, jnp.array([True] * 3), Limits(norm=1e6))
        Array([ True, False, False], dtype=bool)
    """
    allowed: Bool[Array, "devices"] = _acceptable(
        jnp, uploads, infos, present, limits.norm
    )
    return allowed


def is_acceptable(upload: PyTree, info: Info, limits: Limits) -> bool:
    """Return whether one device's upload may enter the mean: `acceptable` in NumPy.

    Args:
        upload: arrays of the host, as the server averages them.
        info: what the device reports.
        limits: of which the norm's is applied here.

    Example:
        >>> is_acceptable(np.array([3.0, 4.0]), {"steps": 9}, Limits(norm=8.0))
        True
        >>> is_acceptable(np.array([1.0, np.nan]), {}, Limits())
        False
    """
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(info)):
        return False
    norm_limit = limits.norm
    # One pass over the numbers, where the rule takes several: a sum of squares is
    # finite only if all of them are, and each may have lost less than the smallest
    # normal number to underflow. What is near the limit, or has squares beyond the
    # range, is held to the rule itself.
    with np.errstate(all="ignore"):
        squares = 0.0
        for leaf in jax.tree.leaves(upload):
            flat = np.asarray(leaf, accumulator(leaf)).ravel()
            lost = flat.size * float(np.finfo(flat.dtype).tiny)
            squares += float(np.dot(flat, flat)) + lost
        clear = np.inf if norm_limit is None else 0.9 * float(norm_limit)
        if np.sqrt(squares) < clear:
            return True
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], upload)
        return bool(_acceptable(np, stacked, {}, np.array([True]), norm_limit)[0])


def distances(
    library: Any,
    travel: tuple[PyTree, ...],
    allowed: Bool[Array | np.ndarray, "devices"],
) -> Any:
    """Return how far each device has gone in each variable.

    Args:
        library: NumPy, or JAX's.
        travel: the way of each variable, of all devices along a leading axis.
        allowed: whose uploads are finite.

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


def _acceptable(
    library: Any,
    uploads: PyTree,
    infos: Info,
    present: Bool[Array | np.ndarray, "devices"],
    norm_limit: tree.Scalar | None,
) -> Any:
    """Return which stacked uploads may enter the mean, by JAX or by NumPy."""
    rows, reported = (
        [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(sent)]
        for sent in (uploads, infos)
    )
    # Not read off the largest entry: XLA takes ten times as long to find it on a CPU.
    finite = [
        library.all(library.isfinite(part), axis=1) for part in (*rows, *reported)
    ]
    allowed = reduce(library.logical_and, finite, present)
    if norm_limit is None:
        return allowed
    return allowed & (_norms(library, rows, allowed) <= norm_limit)


def _norms(
    library: Any, rows: list[Any], allowed: Bool[Array | np.ndarray, "devices"]
) -> Any:
    """Return each device's Euclidean norm over all rows, if its upload is finite."""
    widest = np.result_type(*map(accumulator, rows))
    sizes = [library.abs(part.astype(widest)) for part in rows]
    peaks = [library.max(part, axis=1, initial=0) for part in sizes]
    # In units of the largest entry: the square of 1e30 is beyond single precision. But
    # in none beyond 2e28 there: XLA multiplies by the reciprocal, and takes that of
    # 1e38 for zero.
    largest = np.array(np.finfo(widest).max ** 0.75, widest)
    peak = library.clip(reduce(library.maximum, peaks), 1 / largest, largest)
    unit = library.where(allowed, peak, 1)
    squares = [library.sum((part / unit[:, None]) ** 2, axis=1) for part in sizes]
    return unit * library.sqrt(reduce(library.add, squares))


def inspect(
    round_number: int,
    reports: tuple[Report, ...],
    participants: Int[np.ndarray, "participants"],
    counts: ExclusionCounts,
    limits: Limits = NO_LIMITS,
) -> None:
    """Count the devices that a round excluded, and stop a run that has no others.

    A warning names a device when it is excluded for the first time, and whenever its
    count has doubled since.

    Args:
        round_number: of the round.
        reports: of its exchanges.
        participants: the devices that the round was to have.
        counts: of the run; the round is added.
        limits: that uploads were held to.

    Raises:
        NoUploadsError: if every device of an exchange was excluded.

    Example:
        >>> both, none = np.array([0, 1]), np.array([False, False])
        >>> report = Report(both, ~none, (none,), {}, 0.0)
        >>> inspect(3, (report,), both, ExclusionCounts(2))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.screening.NoUploadsError: round 3, exchange 0: the uploads of
        all 2 devices were left out: upload is not finite; lower the step that was too
        large (fedbilevel.metrics.find_instabilities names it), or let DebugSimulation
        find the first number that is not finite.
    """
    cure = f"{limits.cure}, " if limits.cure else ""
    if not round_number:
        cure += "look for examples that are not finite, "
    excluded: dict[int, tuple[int, str | None]] = {}
    for exchange, report in enumerate(reports):
        if any(isinstance(piece, jax.core.Tracer) for piece in report.counted):
            return  # a run inside a traced function has no numbers to look at
        asked = int(report.present.sum())
        if asked < len(participants):
            contacted = report.devices[report.present]
            for device in np.setdiff1d(participants, contacted).tolist():
                excluded.setdefault(device, (exchange, "was not contacted"))
        left_out = report.excluded
        if not len(left_out):
            continue
        if len(left_out) == asked:
            raise NoUploadsError(
                f"round {round_number}, exchange {exchange}: the uploads of all "
                f"{asked} devices were left out: {limits.violation}; {cure}lower the step "
                "that was too large (fedbilevel.metrics.find_instabilities names it), "
                "or let DebugSimulation find the first number that is not finite."
            )
        for device in left_out.tolist():
            excluded.setdefault(device, (exchange, report.reasons.get(device)))
    grown = counts.add(participants, excluded)
    for exchange in sorted({excluded[device][0] for device in grown}):
        here = [device for device in grown if excluded[device][0] == exchange]
        where = f"round {round_number}, exchange {exchange}"
        _warn(where, {one: excluded[one][1] for one in here}, counts, limits)


def _warn(
    where: str,
    devices: Mapping[int, str | None],
    counts: ExclusionCounts,
    limits: Limits,
) -> None:
    more = len(devices) - MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    by_reason: dict[str, list[str]] = {}
    for device, reason in sorted(devices.items())[:MOST_NAMED]:
        count = counts.of(device)
        name = f"device {device} (in {count.excluded} of its {count.rounds} rounds)"
        by_reason.setdefault(reason or limits.violation, []).append(name)
    named = "; ".join(
        f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()
    )
    logger.warning("%s: excluded %s%s", where, named, others)
