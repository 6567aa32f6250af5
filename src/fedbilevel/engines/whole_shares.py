"""Whole shares: the integers by which the levels of `FixedPoint` are weighted."""

from typing import Any

import numpy as np
from jaxtyping import Float

from fedbilevel.transforms.transformed import fixed_point_of

SHARE_UNITS = 2**15
"""Units of the share 1. With levels of at most 16 bits and shares of at least half a
unit, sums are below 2³¹: each whole share is at most twice the share."""
ROUNDING = 2.0**-18
"""Part of a unit by which a share may be below half a unit and still count as one. The
shares of 65,536 equal devices are half a unit each, up to rounding errors."""


def whole_shares(library: Any, shares: Any) -> Any:
    """Return shares as multiples of 2⁻¹⁵; half a unit is rounded up.

    Args:
        library: `numpy` or `jax.numpy`.
        shares: shares of the devices; those of all participants add up to 1.

    Example:
        >>> whole_shares(np, np.array([0.5, 0.125, 0.0]))
        array([16384,  4096,     0], dtype=int32)
    """
    return library.floor(shares * SHARE_UNITS + (0.5 + ROUNDING)).astype(np.int32)


def check_sums(
    algorithm: Any,
    weights: Float[np.ndarray, "devices"],
    cohort_size: int,
) -> None:
    """Check weights if the devices of an algorithm send fixed-point numbers.

    Args:
        algorithm: algorithm with its transforms.
        weights: weights of all devices.
        cohort_size: usual number of participants.

    Raises:
        ValueError: if a weight is too small.

    Example:
        >>> from fedbilevel import Clip, FedBiO, FixedPoint, with_transforms
        >>> algorithm = with_transforms(FedBiO(0.1), Clip(1.0), FixedPoint())
        >>> check_sums(algorithm, np.array([1.0, 1e-6]), 2)
        Traceback (most recent call last):
        ...
        ValueError: The smallest weight is 1e-06 of the weights of all participants, but
        FixedPoint rounds shares to multiples of 1/32768. Raise this weight, or omit
        FixedPoint.
    """
    if fixed_point_of(algorithm) is None:
        return
    present = np.sort(weights[weights > 0])
    smallest = float(present[0] / present[-cohort_size:].sum())
    if whole_shares(np, np.float64(smallest)) == 0:
        raise ValueError(
            f"The smallest weight is {smallest:.3g} of the weights of all "
            f"participants, but FixedPoint rounds shares to multiples of "
            f"1/{SHARE_UNITS}. Raise this weight, or omit FixedPoint."
        )
