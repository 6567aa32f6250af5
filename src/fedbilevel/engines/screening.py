"""The rule about bad numbers: which uploads enter the mean, on every engine."""

import logging
from collections.abc import Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedbilevel.algorithms.protocol import Decoded, Info
from fedbilevel.engines.exclusions import ExclusionCounts
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
    uploads: Decoded,
    infos: Info,
    present: Bool[Array, "devices"],
    norm_limit: tree.Rate | None,
) -> Bool[Array, "devices"]:
    """Return which of the stacked uploads may enter the mean.

    A device counts if it is present, if its upload and its info are finite, and if the
    Euclidean norm of its upload is at most the limit. The limit does not apply to info:
    a number of local steps is no part of the norm. Info that is not finite excludes its
    device, since info is averaged too.

    Args:
        uploads: along a leading axis, as the server averages them.
        infos: what the devices report, along a leading axis.
        present: which devices are not absent.
        norm_limit: the largest norm allowed; none to accept any finite upload.

    Example:
        >>> import jax.numpy as jnp
        >>> uploads = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [1e30, 0.0]])
        >>> acceptable(uploads, {}, jnp.array([True] * 3), norm_limit=1e6)
        Array([ True, False, False], dtype=bool)
    """
    allowed: Bool[Array, "devices"] = _acceptable(
        jnp, uploads, infos, present, norm_limit
    )
    return allowed


def is_acceptable(upload: Decoded, info: Info, norm_limit: tree.Rate | None) -> bool:
    """Return whether one device's upload may enter the mean: `acceptable` in NumPy.

    Args:
        upload: arrays of the host, as the server averages them.
        info: what the device reports.
        norm_limit: the largest norm allowed; none to accept any finite upload.

    Example:
        >>> is_acceptable(np.array([3.0, 4.0]), {"steps": 9}, norm_limit=8.0)
        True
        >>> is_acceptable(np.array([1.0, np.nan]), {}, norm_limit=None)
        False
    """
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(info)):
        return False
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


def reason_for_exclusion(norm_limit: tree.Rate | None) -> str:
    """Return what is wrong with an upload that is not acceptable.

    Example:
        >>> reason_for_exclusion(norm_limit=8.0)
        'upload is not finite or exceeds norm_limit=8'
    """
    if norm_limit is None:
        return "upload is not finite"
    return f"upload is not finite or exceeds norm_limit={float(norm_limit):g}"


def _acceptable(
    library: Any,
    uploads: Decoded,
    infos: Info,
    present: Bool[Array | np.ndarray, "devices"],
    norm_limit: tree.Rate | None,
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
    norm_limit: tree.Rate | None = None,
) -> None:
    """Count the devices that a round excluded, and stop a run that has no others.

    A warning names a device when it is excluded for the first time, and whenever its
    count has doubled since.

    Args:
        round_number: of the round.
        reports: of its exchanges.
        participants: the devices that the round was to have.
        counts: of the run; the round is added.
        norm_limit: that uploads were held to, if any.

    Raises:
        NoUploadsError: if every device of an exchange was excluded.

    Example:
        >>> both, none = np.array([0, 1]), np.array([False, False])
        >>> report = Report(both, ~none, (none,), {}, 0.0)
        >>> inspect(3, (report,), both, ExclusionCounts(2))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.screening.NoUploadsError: round 3, exchange 0: the uploads of
        all 2 devices were not finite; lower the step that was too large
        (fedbilevel.metrics.find_instabilities names it), or let DebugSimulation find
        the first number that is not finite.
    """
    reason, cure = "not finite", ""
    if norm_limit is not None:
        reason = f"not finite, or of a norm above norm_limit={float(norm_limit):g}"
        cure = "raise the limit, "
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
        left_out = report.left_out
        if not len(left_out):
            continue
        if len(left_out) == asked:
            raise NoUploadsError(
                f"round {round_number}, exchange {exchange}: the uploads of all "
                f"{asked} devices were {reason}; {cure}lower the step that was too "
                "large (fedbilevel.metrics.find_instabilities names it), or let "
                "DebugSimulation find the first number that is not finite."
            )
        for device in left_out.tolist():
            excluded.setdefault(device, (exchange, report.reasons.get(device)))
    grown = counts.add(participants, excluded)
    for exchange in sorted({excluded[device][0] for device in grown}):
        here = [device for device in grown if excluded[device][0] == exchange]
        where = f"round {round_number}, exchange {exchange}"
        _warn(where, {one: excluded[one][1] for one in here}, counts, norm_limit)


def _warn(
    where: str,
    devices: Mapping[int, str | None],
    counts: ExclusionCounts,
    norm_limit: tree.Rate | None,
) -> None:
    bad_numbers = reason_for_exclusion(norm_limit)
    more = len(devices) - MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    by_reason: dict[str, list[str]] = {}
    for device, reason in sorted(devices.items())[:MOST_NAMED]:
        count = counts.of(device)
        name = f"device {device} (in {count.excluded} of its {count.rounds} rounds)"
        by_reason.setdefault(reason or bad_numbers, []).append(name)
    named = "; ".join(
        f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()
    )
    logger.warning("%s: excluded %s%s", where, named, others)
