"""The ε that noised sums spend together, by dp-accounting.

Participation of every device is one Gaussian mechanism whatever the number of releases,
and ε is exact. Samples of a fixed size are composed as privacy loss distributions.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, NamedTuple, TypeAlias

from fedbilevel.mathematics.settings import (
    Positive,
    Range,
    SettingError,
    check_ranges,
)
from fedbilevel.privacy.distributions import compose, largest_loss
from fedbilevel.privacy.library import dp_accounting
from fedbilevel.privacy.releases import (
    GaussianRelease,
    PoissonDraws,
    WithoutReplacement,
    WithReplacement,
)

Releases: TypeAlias = Mapping[GaussianRelease, int] | Iterable[GaussianRelease]
"""Releases with their numbers, or one after another."""

TOLERANCE = 1e-12
"""Error of dp-accounting's ε of a Gaussian, which is added to be on the safe side."""
LARGEST_LOSS = 500.0
"""Privacy loss of a release, in nats, above which amplification is not computed: the
noise multiplier is then below 0.1, and e^ε would overflow."""


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that all releases of a run may spend together.

    Attributes:
        epsilon: ε, above 0.
        delta: δ, above 0 and below 1; usually below 1 / number of devices.

    Example:
        >>> Budget(epsilon=2.0, delta=1e-5).epsilon
        2.0
        >>> Budget(epsilon=2.0, delta=1.0)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: Budget: delta is 1.0, expected
        a number, above 0 and below 1.
    """

    epsilon: Positive
    delta: Annotated[float, Range(above=0.0, below=1.0)]

    def __post_init__(self) -> None:
        check_ranges(self)


class Method(Enum):
    """The proof behind an ε."""

    GAUSSIAN = "one Gaussian mechanism, exact; no amplification by sampling"
    SUBSAMPLED = "privacy loss distributions, with amplification by sampling"
    NONE = "no noise: nothing is protected"


class Account(NamedTuple):
    """The privacy that releases have spent.

    Attributes:
        epsilon: ε at this δ, infinite without noise. It is an upper bound.
        delta: δ.
        method: the proof.
    """

    epsilon: float
    delta: float
    method: Method


def spent(releases: Releases, delta: float) -> float:
    """Return the ε that releases spend together.

    Args:
        releases: numbers of equal releases, or releases one after another. Their order
            does not matter, and a release may depend on the results of earlier ones.
        delta: δ, above 0 and below 1.

    Example:
        >>> round(spent({GaussianRelease(10.0): 100}, delta=1e-5), 4)
        4.3772
        >>> sample = WithoutReplacement(10, population=1000)
        >>> round(spent({GaussianRelease(2.0, sample): 100}, delta=1e-5), 2)
        0.67
    """
    return account(releases, delta).epsilon


def account(releases: Releases, delta: float) -> Account:
    """Return the ε that releases spend together, and the proof of it.

    Args:
        releases: numbers of equal releases, or releases one after another.
        delta: δ, above 0 and below 1.

    Raises:
        SettingError: if δ or a number of releases is invalid.

    Example:
        >>> account([GaussianRelease(1.0)], delta=1e-5).method.name
        'GAUSSIAN'
        >>> account([GaussianRelease(0.0)], delta=1e-5).epsilon
        inf
    """
    Budget(1.0, delta)
    counts = count(releases)
    # Sorted, so that the order of releases changes neither the cache nor the last bit.
    return _account(tuple(sorted(counts.items(), key=repr)), float(delta))


def count(releases: Releases) -> Mapping[GaussianRelease, int]:
    """Return the number of each release.

    Raises:
        SettingError: if a number is negative or not whole.

    Example:
        >>> count([GaussianRelease(1.0), GaussianRelease(1.0)])
        {GaussianRelease(noise_multiplier=1.0, sampling=Everyone()): 2}
    """
    if not isinstance(releases, Mapping):
        releases = Counter(releases)
    for release, number in releases.items():
        if not isinstance(release, GaussianRelease):
            raise TypeError(
                f"releases has {release!r}. Pass objects of GaussianRelease."
            )
        if not isinstance(number, int) or number < 0:
            raise SettingError(
                "releases",
                f"give whole numbers, at least 0, not {number!r}.",
                f"The number of {release} is {number!r}, expected a whole number, at "
                "least 0.",
            )
    return {release: number for release, number in releases.items() if number}


@lru_cache(maxsize=65536)
def _account(counts: tuple[tuple[GaussianRelease, int], ...], delta: float) -> Account:
    library = dp_accounting()
    if any(release.noise_multiplier == 0 for release, _ in counts):
        return Account(math.inf, delta, Method.NONE)
    # n Gaussian releases with noise σ are one with σ/√n (Dong, Roth and Su, "Gaussian
    # differential privacy", 2019, Corollary 2).
    squares = sum(_squares(release, number) for release, number in counts)
    if squares == 0:
        return Account(0.0, delta, Method.GAUSSIAN)
    gaussian = library.get_epsilon_gaussian(squares**-0.5, delta, tol=TOLERANCE)
    gaussian += 2 * TOLERANCE * (1 + gaussian) if gaussian else 0.0
    plain = Account(float(gaussian), delta, Method.GAUSSIAN)
    parts = _merge(counts)
    if not any(amplifies(release) for release in parts):
        return plain
    epsilon = float(compose(parts).get_epsilon_for_delta(delta))
    sampled = Account(epsilon, delta, Method.SUBSAMPLED)
    return min(plain, sampled, key=lambda result: result.epsilon)


def amplifies(release: GaussianRelease) -> bool:
    """Return whether a sample is smaller than the population.

    Example:
        >>> amplifies(GaussianRelease(1.0))
        False
        >>> amplifies(GaussianRelease(1.0, WithoutReplacement(5, population=5)))
        False
    """
    sampling = release.sampling
    if isinstance(sampling, WithoutReplacement):
        return sampling.sample < sampling.population
    return isinstance(sampling, WithReplacement | PoissonDraws)


def _merge(
    counts: tuple[tuple[GaussianRelease, int], ...],
) -> Mapping[GaussianRelease, int]:
    """Replace all releases without amplification by a single Gaussian release."""
    result, squares = {}, 0.0
    for release, number in counts:
        if amplifies(release) and largest_loss(release) <= LARGEST_LOSS:
            result[release] = number
        else:
            squares += _squares(release, number)
    if squares:
        result[GaussianRelease(squares**-0.5)] = 1
    return result


def _squares(release: GaussianRelease, number: int) -> float:
    # A term that occurs k times is k times as long.
    return number * (release.sampling.largest / release.noise_multiplier) ** 2
