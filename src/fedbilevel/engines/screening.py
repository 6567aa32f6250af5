"""Which uploads the server averages: the rule about bad numbers, for every engine."""

import logging
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedbilevel.algorithms.protocol import Decoded
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
    norm_limit: tree.Rate | None = None,
) -> None:
    """Name the devices that a round left out, and stop a run that has no others.

    Raises:
        NoUploadsError: if every device of an exchange was left out.

    Example:
        >>> both, none = np.array([0, 1]), np.array([False, False])
        >>> report = Report(both, ~none, (none,), {}, 0.0)
        >>> inspect(3, (report,))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.screening.NoUploadsError: round 3, exchange 0: the uploads of
        all 2 devices were not finite; lower the learning rate, or let DebugSimulation
        find the first number that is not finite.
    """
    for exchange, report in enumerate(reports):
        if any(isinstance(piece, jax.core.Tracer) for piece in report.counted):
            return  # a run inside a traced function has no numbers to look at
        left_out = report.left_out
        if not len(left_out):
            continue
        where = f"round {round_number}, exchange {exchange}"
        reason, cure = "not finite", ""
        if norm_limit is not None:
            limit = f"norm_limit={float(norm_limit):g}"
            reason, cure = (
                f"not finite, or of a norm above {limit}",
                "raise the limit, ",
            )
        if len(left_out) == report.present.sum():
            raise NoUploadsError(
                f"{where}: the uploads of all {len(left_out)} devices were {reason}; "
                f"{cure}lower the learning rate, or let DebugSimulation find the first "
                "number that is not finite."
            )
        more = len(left_out) - MOST_NAMED
        others = f" and {more} more" if more > 0 else ""
        if report.reasons:
            told = "; ".join(
                f"device {one}, which {report.reasons[one]}"
                for one in left_out[:MOST_NAMED].tolist()
            )
            logger.warning("%s: left out %s%s", where, told, others)
            continue
        names = ", ".join(map(str, left_out[:MOST_NAMED])) + others
        logger.warning(
            "%s: left out the uploads of %s %s, which were %s",
            where,
            "device" if len(left_out) == 1 else "devices",
            names,
            reason,
        )
