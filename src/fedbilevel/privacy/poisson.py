"""Random batch sizes: Poisson numbers from 64 random bits, up to a largest number.

Such numbers cannot have exact Poisson probabilities. But the ratio of each probability
to the Poisson one never increases with the number. By the corollary in `mixture` their
ε is then at most that of Poisson numbers, without a part of δ for the difference.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

from fedbilevel.mathematics.settings import SettingError

TAIL = 1e-16
"""Probability of Poisson numbers above the capacity. These batches are empty."""
BITS = 64
ROOM = Decimal(2) ** -40
"""Probability of further empty batches, from which other numbers are rounded up."""
DIGITS = 50
"""Decimal digits of the probabilities, far more than 64 bits have."""
LARGEST_MEAN = 100_000
"""Limit of the mean: a table of a million takes ten seconds."""


class PoissonTable(NamedTuple):
    """The distribution of the number of examples in a batch.

    The number is that of the thresholds which are at most 64 random bits.

    Attributes:
        capacity: largest number.
        high: upper 32 bits of the thresholds.
        low: lower 32 bits of the thresholds.
    """

    capacity: int
    high: UInt32[np.ndarray, "capacity"]
    low: UInt32[np.ndarray, "capacity"]


@lru_cache(maxsize=64)
def poisson_table(mean: int) -> PoissonTable:
    """Return the table of a Poisson distribution with a whole mean.

    Raises:
        SettingError: if the mean is above `LARGEST_MEAN`.

    Example:
        >>> poisson_table(128).capacity
        232
    """
    if mean > LARGEST_MEAN:
        raise SettingError(
            "batch_size",
            f"give at most {LARGEST_MEAN} with ExampleNoise, not {mean}.",
            f"ExampleNoise: a batch has {mean} examples on average, expected at most "
            f"{LARGEST_MEAN}. Lower batch_size of the algorithm (or "
            "initial_batch_size, if it has one).",
        )
    terms = _poisson_terms(mean)
    *thresholds, _ = accumulate(_weights(terms, mean))
    return PoissonTable(
        len(thresholds),
        np.array([value >> 32 for value in thresholds], np.uint32),
        np.array([value & 0xFFFFFFFF for value in thresholds], np.uint32),
    )


def _poisson_terms(mean: int) -> list[Decimal]:
    """Return the probabilities of 0, 1, … up to the capacity, in units of 2⁻⁶⁴."""
    with localcontext(prec=DIGITS):
        term = Decimal(-mean).exp() * 2**BITS
        terms, rest = [term], 2**BITS - term
        while rest > Decimal(TAIL) * 2**BITS:
            term = term * mean / len(terms)
            terms.append(term)
            rest -= term
    return terms


def _weights(terms: list[Decimal], mean: int) -> list[int]:
    """Return whole numbers whose ratios to the terms never increase."""
    weights = [0] * len(terms)
    upwards, downwards = range(mean, len(terms)), range(mean - 1, 0, -1)
    # Ratios are rounded in the same direction, so that they never increase either.
    for numbers, rounding in ((upwards, ROUND_FLOOR), (downwards, ROUND_CEILING)):
        with localcontext(prec=DIGITS, rounding=rounding):
            ratio = 1 - ROOM
            for number in numbers:
                weight = (ratio * terms[number]).to_integral_value()
                ratio = weight / terms[number]
                weights[number] = int(weight)
    weights[0] = 2**BITS - sum(weights)
    return weights
