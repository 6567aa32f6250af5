"""Which uploads the server averages: the rule about bad numbers, for every engine."""

import logging
from collections.abc import Mapping
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.algorithms.protocol import Decoded
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
    uploads: Decoded, present: Bool[Array, "devices"], norm_limit: tree.Rate | None
) -> Bool[Array, "devices"]:
    """Return which of the stacked uploads may enter the mean.

    One that is not finite may not, nor one whose Euclidean norm exceeds the limit, nor
    that of an absent device.

    Args:
        uploads: along a leading axis, as the server averages them.
        present: which devices are not absent.
        norm_limit: the largest norm allowed; none if any finite upload is welcome.

    Example:
        >>> import jax.numpy as jnp
        >>> uploads = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [1e30, 0.0]])
        >>> acceptable(uploads, jnp.array([True] * 3), norm_limit=1e6)
        Array([ True, False, False], dtype=bool)
    """
    rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(uploads)]
    # Not read off the largest entry: XLA takes ten times as long to find it on a CPU.
    finite = [jnp.all(jnp.isfinite(part), axis=1) for part in rows]
    allowed = reduce(jnp.logical_and, finite, present)
    if norm_limit is None:
        return allowed
    return allowed & (_norms(rows, allowed) <= norm_limit)


def _norms(
    rows: list[Array], allowed: Bool[Array, "devices"]
) -> Float[Array, "devices"]:
    """Return each device's Euclidean norm over all rows, if its upload is finite."""
    widest = np.result_type(*map(accumulator, rows))
    sizes = [jnp.abs(part.astype(accumulator(part))) for part in rows]
    peaks = [jnp.max(part, axis=1, initial=0).astype(widest) for part in sizes]
    peak = reduce(jnp.maximum, peaks)
    # In units of the largest entry: the square of 1e30 is beyond single precision.
    unit = jnp.where(allowed & (peak > 0), peak, 1)
    squares = [
        jnp.sum((part / unit[:, None].astype(part.dtype)) ** 2, axis=1)
        for part in sizes
    ]
    total = reduce(jnp.add, [part.astype(widest) for part in squares])
    return unit * jnp.sqrt(total)


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
        _warn(where, {one: excluded[one][1] for one in here}, counts, reason)


def _warn(
    where: str,
    devices: Mapping[int, str | None],
    counts: ExclusionCounts,
    bad_numbers: str,
) -> None:
    more = len(devices) - MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    named, told = [], any(devices.values())
    for device, reason in sorted(devices.items())[:MOST_NAMED]:
        count = counts.of(device)
        name = f"device {device} (in {count.excluded} of its {count.rounds} rounds)"
        named.append(
            f"{name}, which {reason or f'was {bad_numbers}'}" if told else name
        )
    if told:
        logger.warning("%s: excluded %s%s", where, "; ".join(named), others)
        return
    logger.warning(
        "%s: excluded the uploads of %s%s, which were %s",
        where,
        ", ".join(named),
        others,
        bad_numbers,
    )
