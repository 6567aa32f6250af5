"""Random batch sizes: Poisson numbers from 64 random bits, and their largest value."""

from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

TAIL = 1e-16
"""Probability of a batch above the capacity, which is cut to the capacity."""
BITS = 64
DIGITS = 50
"""Decimal digits of the distribution function, far more than 64 bits have."""


class PoissonTable(NamedTuple):
    """The distribution of the number of examples in a batch.

    The number is that of the thresholds which are at most 64 random bits.

    Attributes:
        capacity: largest number.
        high: upper 32 bits of the thresholds.
        low: lower 32 bits of the thresholds.
        lost: total variation distance from the Poisson distribution, at most.
    """

    capacity: int
    high: UInt32[np.ndarray, "capacity"]
    low: UInt32[np.ndarray, "capacity"]
    lost: float


@lru_cache(maxsize=64)
def poisson_table(mean: int) -> PoissonTable:
    """Return the table of a Poisson distribution with a whole mean.

    Example:
        >>> poisson_table(128).capacity
        232
        >>> poisson_table(128).lost < 1.2e-16
        True
    """
    with localcontext(prec=DIGITS):
        term = below = Decimal(-mean).exp()
        cumulative = [below]  # P(n ≤ 0), P(n ≤ 1), …
        # The terms beyond number ≥ 2 · mean fall at least by halves.
        while len(cumulative) <= 2 * mean or 2 * term > Decimal(TAIL) / 8:
            term = term * mean / len(cumulative)
            below += term
            cumulative.append(below)
        tails = [1 - value for value in cumulative]
        capacity = next(n for n, tail in enumerate(tails) if tail <= Decimal(TAIL))
        scaled = [int(value * 2**BITS) for value in cumulative[:capacity]]
    return PoissonTable(
        capacity,
        np.array([value >> 32 for value in scaled], np.uint32),
        np.array([value & 0xFFFFFFFF for value in scaled], np.uint32),
        # Each threshold is rounded down by less than one unit.
        TAIL + (capacity + 1) * 2.0**-BITS,
    )
