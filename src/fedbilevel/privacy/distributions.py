"""Privacy loss distributions of subsampled releases, in dp-accounting's classes.

dp-accounting 0.6 has no privacy loss distribution for samples of a fixed size. These
are made from the bounds of `profile` and the exact `mixture_profile`: an upper bound of
all H_α is the profile of a pair of distributions that dominates the mechanism, and
pairs that dominate each release dominate their adaptive composition (Zhu, Dong and
Wang, "Optimal accounting of differential privacy via characteristic function", 2022,
Theorem 10).
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from fedbilevel.privacy.library import dp_accounting
from fedbilevel.privacy.mixture import mixture_profile
from fedbilevel.privacy.profile import Curve, Profile, lower_hull, profile
from fedbilevel.privacy.releases import GaussianRelease, PoissonDraws

LOST = 1e-20
"""δ beyond the largest privacy loss of a release, which is counted as infinite."""
POINTS = 8192
"""Points between 0 and the largest loss of a release that is repeated 1,000 times."""
MOST_POINTS = 2**15
"""Limit of the points between 0 and the largest loss, of any release."""


def compose(counts: Mapping[GaussianRelease, int]) -> Any:
    """Return the privacy loss distribution of several releases.

    Args:
        counts: the number of each release, at least one release. Noise is above 0.

    Example:
        >>> loss = compose({GaussianRelease(2.0): 4})
        >>> round(loss.get_epsilon_for_delta(1e-5), 4)
        4.3772
    """
    interval = _interval(counts)
    parts = [
        distribution(release, interval).self_compose(count)
        for release, count in counts.items()
    ]
    result = parts[0]
    for part in parts[1:]:
        result = result.compose(part)
    return result


@lru_cache(maxsize=64)
def distribution(release: GaussianRelease, interval: float) -> Any:
    """Return the privacy loss distribution of one release.

    Args:
        release: a release with noise.
        interval: distance between two privacy losses; rounding is pessimistic.

    Example:
        >>> loss = distribution(GaussianRelease(1.0), 1e-3)
        >>> round(float(loss.get_delta_for_epsilon(1.0)), 4)
        0.1269
    """
    library = dp_accounting()
    points = math.ceil(largest_loss(release) / interval)
    bounds = profile_of(release, np.arange(points + 1) * interval)
    build = library.pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap
    with_device, without_device = (
        build(interval, -points, points, _both_signs(ahead, back, interval))
        for ahead, back in (bounds, bounds[::-1])
    )
    losses = library.pld.privacy_loss_distribution.PrivacyLossDistribution
    return losses(with_device, without_device)


@lru_cache(maxsize=64)
def largest_loss(release: GaussianRelease) -> float:
    """Return an ε at which δ of a release is at most `LOST`.

    Example:
        >>> 9 < largest_loss(GaussianRelease(1.0)) < 11
        True
    """

    def lost(epsilon: float) -> float:
        return float(profile_of(release, np.array([epsilon])).with_device[0])

    low, high = 0.0, 1.0
    while lost(high) > LOST:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) > LOST else (low, middle)
    return high


def profile_of(release: GaussianRelease, epsilon: Curve) -> Profile:
    """Return upper bounds of δ of one release at several ε ≥ 0.

    Example:
        >>> release = GaussianRelease(1.0, PoissonDraws(1, population=10))
        >>> bool(profile_of(release, np.ones(1)).with_device < 0.01)
        True
    """
    is_mixture = isinstance(release.sampling, PoissonDraws)
    function = mixture_profile if is_mixture else profile
    return function(epsilon, release.noise_multiplier, release.sampling.occurrences())


def _interval(counts: Mapping[GaussianRelease, int]) -> float:
    """Return a common distance of losses: a power of 2, so that caches are hit.

    The error grows with the number of compositions, so a release that is repeated
    rarely needs fewer points, down to an eighth.
    """
    wanted = min(
        largest_loss(release) / POINTS * min(max(1.0, 1000 / count) ** 0.5, 8.0)
        for release, count in counts.items()
    )
    coarsest = max(map(largest_loss, counts)) / MOST_POINTS
    return float(2.0 ** math.floor(math.log2(max(wanted, coarsest))))


def _both_signs(
    ahead: Curve, back: Curve, interval: float
) -> Float[np.ndarray, "both_signs"]:
    """Return δ at ε from -n to n intervals, convex in e^ε.

    Args:
        ahead: bounds of H(P ‖ Q) at ε ≥ 0.
        back: bounds of H(Q ‖ P) at the same ε.
        interval: distance between two ε.
    """
    epsilon = np.arange(len(ahead)) * interval
    # H_α(P ‖ Q) = 1 - α + α H_{1/α}(Q ‖ P).
    negative = -np.expm1(-epsilon) + np.exp(-epsilon) * back
    delta = np.concatenate([negative[:0:-1], ahead])
    alpha = np.exp(np.concatenate([-epsilon[:0:-1], epsilon]))
    return np.minimum.accumulate(np.clip(lower_hull(alpha, delta), 0.0, 1.0))
