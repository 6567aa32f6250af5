"""Noise for a budget, and the number of releases that a budget allows."""

import math
from collections.abc import Callable

from fedbilevel.mathematics.settings import LARGEST, SettingError
from fedbilevel.privacy.accountant import Budget, Releases, account, count
from fedbilevel.privacy.releases import Everyone, GaussianRelease, Sampling

PRECISION = 1e-4
"""Relative precision of a noise multiplier."""
LEAST_NOISE = 1e-3
"""Smallest noise multiplier that is returned."""


def noise_for(
    epsilon: float, delta: float, rounds: int, sampling: Sampling = Everyone()
) -> float:
    """Return the smallest noise multiplier whose ε never exceeds a target.

    Args:
        epsilon: target ε of all releases together.
        delta: δ.
        rounds: number of releases.
        sampling: selection of the devices or examples of each release.

    Raises:
        SettingError: if ε, δ or the number of rounds is invalid.

    Example:
        >>> import math
        >>> noise = noise_for(epsilon=2.0, delta=1e-5, rounds=100)
        >>> math.ceil(100 * noise) / 100  # rounded down, it would exceed the budget
        19.94
        >>> from fedbilevel.privacy import spent
        >>> spent({GaussianRelease(noise): 100}, delta=1e-5) <= 2.0
        True
    """
    budget = Budget(epsilon, delta)
    _check_rounds(rounds)

    def spend(noise: float) -> float:
        return account({GaussianRelease(noise, sampling): rounds}, delta).epsilon

    return smallest_noise(spend, budget.epsilon)


def smallest_noise(spend: Callable[[float], float], epsilon: float) -> float:
    """Return the smallest noise multiplier with which a run spends at most ε.

    Args:
        spend: function from a noise multiplier to the ε of the run; it decreases.
        epsilon: largest ε.

    Example:
        >>> round(smallest_noise(lambda noise: 10.0 / noise, epsilon=2.0), 2)
        5.0
    """
    # SciPy is imported when noise is calibrated: every run imports this module.
    from scipy.optimize import brentq

    def excess(log_noise: float) -> float:
        return spend(math.exp(log_noise)) - epsilon

    low, high = math.log(LEAST_NOISE), 0.0
    if excess(low) <= 0:
        return LEAST_NOISE
    while excess(high) > 0:
        low, high = high, high + 1.0
    root = float(brentq(excess, low, high, xtol=PRECISION, rtol=PRECISION / 10))
    # The root may be on the wrong side by its precision.
    while excess(root) > 0:
        root += PRECISION
    return math.exp(root)


def count_within(
    budget: Budget, release: GaussianRelease | Releases, earlier: Releases = ()
) -> int:
    """Return the largest number of equal releases within a budget.

    A run stops before the release after these, so ε needs no computation in each round.

    Args:
        budget: limit of all releases together.
        release: the release to repeat, or several releases to repeat together.
        earlier: releases that are already spent.

    Example:
        >>> budget = Budget(epsilon=2.0, delta=1e-5)
        >>> count_within(budget, GaussianRelease(20.0))
        100
        >>> count_within(budget, GaussianRelease(20.0), {GaussianRelease(20.0): 30})
        70
        >>> count_within(budget, {GaussianRelease(20.0): 4})
        25
    """
    single = isinstance(release, GaussianRelease)
    each = count([release] if single else release)  # type: ignore[list-item, arg-type]
    before = count(earlier)

    def within(number: int) -> bool:
        total = dict(before)
        for part, times in each.items():
            total[part] = total.get(part, 0) + number * times
        return _within(budget, total)

    if not all(part.noise_multiplier for part in each) or not within(1):
        return 0
    return _largest(within)


def _largest(within: Callable[[int], bool]) -> int:
    """Return the largest number that is allowed; 1 is."""
    low, high = 1, 2
    while high < LARGEST and within(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _within(budget: Budget, releases: Releases) -> bool:
    return account(releases, budget.delta).epsilon <= budget.epsilon


def _check_rounds(rounds: int) -> None:
    if not isinstance(rounds, int) or rounds < 1:
        raise SettingError(
            "rounds",
            f"give a whole number, at least 1, not {rounds!r}.",
            f"noise_for: rounds is {rounds!r}, expected a whole number, at least 1.",
        )
