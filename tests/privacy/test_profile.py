"""Tests of the profiles of subsampled sums against integrals over all samples."""

from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.spatial import ConvexHull
from scipy.special import ndtr

from fedbilevel.privacy import GaussianRelease, WithoutReplacement, WithReplacement
from fedbilevel.privacy.distributions import compose
from fedbilevel.privacy.profile import gaussian_divergence, lower_hull, profile

EPSILON = np.linspace(0.0, 6.0, 13)
CASES = {
    "the worst": [1.0, -1.0, -1.0, -1.0],
    "aligned": [1.0, 1.0, 1.0, 1.0],
    "mixed": [-1.0, 0.4, -0.2, 1.0],
    "alone": [1.0, 0.0, 0.0, 0.0],
}
"""Terms of devices in one dimension, with norms of at most 1; device 0 is private."""


class Mixture(NamedTuple):
    """The result of a noised sum, averaged over equally likely samples."""

    centres: np.ndarray
    weights: np.ndarray
    noise: float

    def density(self, points):
        far = (np.atleast_1d(points)[:, None] - self.centres) / self.noise
        return np.exp(-(far**2) / 2) @ self.weights / (self.noise * np.sqrt(2 * np.pi))

    def below(self, point):
        return float(ndtr((point - self.centres) / self.noise) @ self.weights)


def mixture(terms, samples, noise):
    sums = [round(sum(terms[number] for number in sample), 9) for sample in samples]
    centres, counts = np.unique(sums, return_counts=True)
    return Mixture(centres, counts / len(samples), noise)


def divergence(p, q, alpha):
    """Return the integral of max(p - alpha q, 0), between the zeros of p - alpha q."""
    grid = np.linspace(-25.0, 25.0, 2001)

    def excess(point):
        return float(p.density(point)[0] - alpha * q.density(point)[0])

    positive = p.density(grid) - alpha * q.density(grid) > 0
    changes = np.flatnonzero(positive[:-1] != positive[1:])
    zeros = [
        # Where both densities are nearly equal, a sign may be one of rounding alone.
        brentq(excess, left, right, xtol=1e-13)
        if excess(left) * excess(right) < 0
        else left
        for left, right in zip(grid[changes], grid[changes + 1], strict=True)
    ]
    ends = [-np.inf, *zeros, np.inf]
    parts = [
        p.below(right) - p.below(left) - alpha * (q.below(right) - q.below(left))
        for left, right in pairwise(ends)
    ]
    return sum(max(part, 0.0) for part in parts)


def neighbours(case, samples, noise):
    with_device = mixture(CASES[case], samples, noise)
    return with_device, mixture([0.0, *CASES[case][1:]], samples, noise)


SAMPLINGS = {
    WithoutReplacement(2, 4): list(combinations(range(4), 2)),
    WithoutReplacement(1, 4): [(0,), (1,), (2,), (3,)],
    WithoutReplacement(3, 4): list(combinations(range(4), 3)),
    WithReplacement(2, 4): list(product(range(4), repeat=2)),
    WithReplacement(3, 4): list(product(range(4), repeat=3)),
}


@pytest.mark.parametrize("noise", [0.8, 2.0])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_profiles_bound_the_divergence_of_every_neighbour(sampling, case, noise):
    p, q = neighbours(case, SAMPLINGS[sampling], noise)
    bound = profile(EPSILON, noise, sampling.occurrences())
    for number, epsilon in enumerate(EPSILON):
        alpha = np.exp(epsilon)
        # 1e-12 is above the rounding of the integral.
        assert divergence(p, q, alpha) <= bound.with_device[number] + 1e-12
        assert divergence(q, p, alpha) <= bound.without_device[number] + 1e-12


def test_the_bound_is_nearly_reached_by_opposite_devices():
    # Half of the clip would not do: the distance of two clips is really taken.
    p, q = neighbours("the worst", SAMPLINGS[WithoutReplacement(1, 4)], 0.8)
    bound = profile(EPSILON, 0.8, {1: 0.25}).with_device
    real = [divergence(p, q, np.exp(epsilon)) for epsilon in EPSILON]
    assert real[-1] > 0.9 * bound[-1]
    alone = 0.25 * gaussian_divergence(np.log1p(np.expm1(EPSILON) / 0.25), 1 / 0.8)
    assert real[-1] > 5 * alone[-1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "sampling", [WithoutReplacement(2, 4), WithReplacement(2, 4)], ids=repr
)
def test_the_composition_bounds_two_releases(sampling, case):
    noise = 1.5
    points = np.linspace(-12.0, 12.0, 601)
    step = (points[1] - points[0]) ** 2
    pair = neighbours(case, SAMPLINGS[sampling], noise)
    p, q = (np.outer(one.density(points), one.density(points)) for one in pair)
    losses = compose({GaussianRelease(noise, sampling): 2})
    for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
        delta = losses.get_delta_for_epsilon(epsilon)
        with_device = np.maximum(p - np.exp(epsilon) * q, 0.0).sum() * step
        without_device = np.maximum(q - np.exp(epsilon) * p, 0.0).sum() * step
        # The kink of the integrand costs the square of the distance of two points.
        assert max(with_device, without_device) <= delta + step / 10


def test_everyone_has_the_profile_of_the_gaussian_mechanism():
    both = profile(EPSILON, 2.0, {1: 1.0})
    one = np.ones(1)
    p, q = Mixture(one, one, 2.0), Mixture(0 * one, one, 2.0)
    real = [divergence(p, q, np.exp(epsilon)) for epsilon in EPSILON]
    np.testing.assert_allclose(both.with_device, real, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(both.without_device, real, rtol=1e-9, atol=1e-13)


def test_the_numbers_of_draws_have_the_probabilities_of_all_sequences():
    shares = WithReplacement(3, population=4).occurrences()
    sequences = list(product(range(4), repeat=3))
    for number in (1, 2, 3):
        real = np.mean([sequence.count(0) == number for sequence in sequences])
        assert shares[number] == pytest.approx(real)


def test_improbable_numbers_of_draws_are_counted_as_the_largest():
    shares = WithReplacement(500, population=10_000).occurrences()
    assert len(shares) < 30
    assert list(shares)[-1] == 500
    # The total is the probability of at least one draw.
    assert sum(shares.values()) == pytest.approx(1 - (1 - 1e-4) ** 500, rel=1e-12)


def test_the_lower_hull_is_that_of_a_library():
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(0.0, 10.0, 200))
    y = generator.uniform(0.0, 1.0, 200) + 0.01 * (x - 5) ** 2
    hull = lower_hull(x, y)
    # Above a polygon's upper side lies one more point, so all corners left are lower.
    ends = np.array([[x[0], 50.0], [x[-1], 50.0]])
    corners = ConvexHull(np.concatenate([np.column_stack([x, y]), ends])).vertices
    corners = np.sort(corners[corners < len(x)])
    np.testing.assert_allclose(hull, np.interp(x, x[corners], y[corners]))
