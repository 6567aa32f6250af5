from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import BilevelProblem, ConjugateGradient, NeumannSeries, Samples
from fedbilevel.theory import Assumptions, series_bias
from tests import quadratic

pytestmark = pytest.mark.slow


def held(count: int, noise: float = 0.3):
    return quadratic.examples(np.random.default_rng(2), count, noise)


def row(batch, i):
    return jax.tree.map(lambda leaf: leaf[i : i + 1], batch)


@pytest.mark.parametrize("terms", [1, 2, 7])
def test_neumann_series_equals_the_written_out_series(terms):
    upper, lower = held(2 + terms)
    samples = Samples(
        upper=row(upper, 0),
        lower=row(lower, 0),
        cross=row(lower, 1),
        curvature=tuple(row(lower, 2 + j) for j in range(terms)),
    )
    generator = np.random.default_rng(3)
    x = generator.normal(size=quadratic.X_SIZE)
    y = generator.normal(size=quadratic.Y_SIZE)
    theta = 0.2

    # θ Σ_{q=−1}^{Q−1} Π_{j=Q−q}^{Q} (I − θ H_j), products written from left to right.
    identity = np.eye(quadratic.Y_SIZE)
    factors = {j: identity - theta * lower.matrix[1 + j] for j in range(1, terms + 1)}
    series = np.zeros_like(identity)
    for q in range(-1, terms):
        product = identity
        for j in range(terms - q, terms + 1):
            product = product @ factors[j]
        series += theta * product
    gradient_x = upper.shift[0] + quadratic.RIDGE * x
    expected = gradient_x + lower.coupling[1].T @ series @ (y - upper.target[0])

    got = NeumannSeries(terms, theta)(quadratic.problem(), x, y, samples)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


class ClosedForm(NamedTuple):
    """∇²yy g · vector, times a factor; a tuple does not support weak references."""

    factor: float

    def __call__(self, x, y, batch, vector, /):
        return self.factor * jnp.mean(batch.matrix, axis=0) @ vector


def test_neumann_series_uses_the_oracle_it_is_given():
    upper, lower = held(4)
    samples = Samples(row(upper, 0), row(lower, 0), row(lower, 1), (row(lower, 2),) * 2)
    x, y = np.ones(quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)

    def estimate(**oracles):
        losses = quadratic.upper_loss, quadratic.lower_loss
        return NeumannSeries(2, 0.2)(BilevelProblem(*losses, **oracles), x, y, samples)

    closed = estimate(hessian_product=ClosedForm(1.0))
    np.testing.assert_allclose(closed, estimate(), rtol=0, atol=1e-12)
    doubled = estimate(hessian_product=ClosedForm(2.0))
    assert not np.allclose(doubled, closed, atol=1e-3)


@pytest.mark.nightly
def test_neumann_series_bias_stays_under_its_bound():
    upper, lower = held(1, noise=0.0)
    mean = quadratic.Mean.of([held(1, noise=0.0)])
    x = np.full(quadratic.X_SIZE, 0.5)
    y = np.full(quadratic.Y_SIZE, -2.0)
    spectrum = np.linalg.eigvalsh(mean.matrix)
    largest = max(spectrum[-1], np.linalg.norm(mean.coupling, 2))
    assumptions = Assumptions(
        strong_convexity=float(spectrum[0]),
        upper_lipschitz=float(np.linalg.norm(y - mean.target)),
        gradient_lipschitz=float(largest),
    )
    theta = 0.9 / largest
    biases = []
    for terms in range(1, 51):
        series = NeumannSeries(terms, theta)
        samples = Samples(upper, lower, lower, (lower,) * terms)
        got = series(quadratic.problem(), x, y, samples)
        biases.append(np.linalg.norm(got - mean.hypergradient(x, y)))
        assert biases[-1] <= series_bias(assumptions, series)
    # The test is not vacuous: the bias is large at first and falls geometrically.
    assert biases[0] > 1e-2
    assert biases[-1] < 1e-3 * biases[0]


@pytest.mark.slow
def test_conjugate_gradient_equals_the_exact_inverse():
    upper, lower = held(6)
    generator = np.random.default_rng(4)
    x = generator.normal(size=quadratic.X_SIZE)
    y = generator.normal(size=quadratic.Y_SIZE)
    expected = quadratic.Mean.of([held(6)]).hypergradient(x, y)
    estimator = ConjugateGradient(iterations=50, tolerance=1e-12)
    got = estimator(quadratic.problem(), x, y, Samples(upper, lower, lower, (lower,)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NeumannSeries(0, 0.5),
        lambda: NeumannSeries(3, 0.0),
        lambda: ConjugateGradient(0),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match=r"is (0|0\.0), expected"):
        make()
