"""A second accountant: a lower bound of ε, without dp-accounting and without `privacy`.

Everything follows from pairs of outputs that neighbours really have: two mixtures of
unit Gaussians on a line. Gaussians alone have a closed form (Balle and Wang, "Improving
the Gaussian mechanism", 2018, Theorem 8). Other pairs are composed by FFT. The line is
cut into bins, which is post-processing, and the privacy loss of each bin is rounded
down, so the resulting δ, and ε, are at most those of the mechanism.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom, poisson

Mixture: TypeAlias = Mapping[float, float]
"""The shares of unit Gaussians, by their centres."""
BINS = 2**15
FARTHEST = 12.0
"""Distance from the outermost centres at which the line ends."""
WINDOW = 80.0
"""Length of the interval of total losses. A loss below −40 has the probability e⁻⁴⁰."""
ROUNDING = 1e-10
"""Part of δ that the errors of the FFT may reach, which is subtracted."""


class Pair(NamedTuple):
    """The outputs of two neighbours in one release.

    Attributes:
        first: output for one of them.
        second: output for the other one.
    """

    first: Mixture
    second: Mixture

    @property
    def reversed(self) -> "Pair":
        return Pair(self.second, self.first)


def gaussian(multiplier: float) -> Pair:
    """Return the pair of a term that is in the sum, and that is zero."""
    return Pair({1 / multiplier: 1.0}, {0.0: 1.0})


def sampled(multiplier: float, sample: int, population: int) -> tuple[Pair, ...]:
    """Return pairs of a sample without replacement.

    The terms of all others are 0, or the opposite of the device's. In the second case
    the sum moves by two terms if the device takes the place of another one.
    """
    rate = sample / population
    with_zeros = {0.0: 1 - rate, 1 / multiplier: rate}
    with_opposites = {0.0: 1 - rate, 2 / multiplier: rate}
    return Pair(with_zeros, {0.0: 1.0}), Pair(with_opposites, with_zeros)


def drawn(multiplier: float, draws: int, population: int) -> tuple[Pair, ...]:
    """Return pairs of a fixed number of draws with replacement."""
    shares = binom.pmf(np.arange(min(draws, 30) + 1), draws, 1 / population)
    once = {k / multiplier: float(share) for k, share in enumerate(shares)}
    twice = {2 * k / multiplier: float(share) for k, share in enumerate(shares)}
    return Pair(once, {0.0: 1.0}), Pair(twice, once)


def poisson_drawn(multiplier: float, draws: int, population: int) -> tuple[Pair, ...]:
    """Return the pair of a Poisson number of draws, where others do not matter."""
    shares = poisson.pmf(np.arange(31), draws / population)
    mixture = {k / multiplier: float(share) for k, share in enumerate(shares)}
    return (Pair(mixture, {0.0: 1.0}),)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return ε of the Gaussian mechanism by its closed form."""
    distance = 1 / multiplier

    def excess(epsilon: float) -> float:
        first = ndtr(distance / 2 - epsilon / distance)
        second = ndtr(-distance / 2 - epsilon / distance)
        return float(first - math.exp(epsilon) * second - delta)

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, 100.0, xtol=1e-13))


def composed_multiplier(counts: Mapping[float, int]) -> float:
    """Return the multiplier of one Gaussian release that equals several of them."""
    squares = sum(number / noise**2 for noise, number in counts.items())
    return float(squares**-0.5)


def epsilon_below(parts: Sequence[tuple[Pair, int]], delta: float) -> float:
    """Return a lower bound of ε of several releases.

    Args:
        parts: the pair of each type of release, and the number of such releases.
        delta: δ.
    """
    return max(
        _one_direction(parts, delta),
        _one_direction([(pair.reversed, number) for pair, number in parts], delta),
    )


def _one_direction(parts: Sequence[tuple[Pair, int]], delta: float) -> float:
    step = 0.01 / max(10, sum(number for _, number in parts))
    points = 2 ** math.ceil(math.log2(WINDOW / step))
    spectrum = np.ones(points // 2 + 1, complex)
    for pair, number in parts:
        spectrum *= np.fft.rfft(_loss_masses(pair, step, points)) ** number
    # Index j is the loss j · step; those above half of the points are negative.
    masses = np.fft.irfft(spectrum, points)[: points // 2]
    losses = step * np.arange(points // 2)
    above = np.cumsum(masses[::-1])[::-1]
    weighted = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    reached = above - np.exp(losses) * weighted - ROUNDING >= delta
    return float(losses[reached].max(initial=0.0))


def _loss_masses(pair: Pair, step: float, points: int) -> np.ndarray:
    """Return the probabilities of losses, rounded down to multiples of `step`."""
    centres = [*pair.first, *pair.second]
    edges = np.linspace(min(centres) - FARTHEST, max(centres) + FARTHEST, BINS + 1)
    first, second = (_bins(mixture, edges) for mixture in pair)
    kept = (first > 1e-290) & (second > 1e-290)
    losses = np.log(first[kept]) - np.log(second[kept])
    numbers = np.floor(losses / step).astype(np.int64)
    # Lower losses are lost, which lowers δ; higher ones are lowered.
    numbers = np.minimum(numbers, points // 2 - 1)
    inside = numbers >= -points // 2
    return np.bincount(
        numbers[inside] % points, weights=first[kept][inside], minlength=points
    )


def _bins(mixture: Mixture, edges: np.ndarray) -> np.ndarray:
    total = np.zeros(len(edges) - 1)
    for centre, share in mixture.items():
        low, high = edges[:-1] - centre, edges[1:] - centre
        upper = ndtr(-low) - ndtr(-high)  # without cancellation to the right
        total += share * np.where(low > 0, upper, ndtr(high) - ndtr(low))
    return total
