"""The largest curvature against the Hessian itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.metrics import largest_curvature


@pytest.mark.slow
def test_it_is_the_largest_eigenvalue_of_the_mean_hessian_over_weighted_devices():
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(rows, 12)) for rows in (5, 9)]
    devices = InMemoryDevices([LocalExamples(part, part) for part in parts])

    def lower(x, y, batch):
        scores = batch @ y["weights"] + y["bias"]
        penalty = 0.1 * jnp.sum(jnp.exp(x) * y["weights"] ** 2)
        return jnp.mean(jnp.logaddexp(0.0, scores)) + penalty

    problem = BilevelProblem(lower, lower)
    x = generator.normal(size=12)
    y = {"weights": generator.normal(size=12), "bias": np.array(0.3)}
    flat, unravel = jax.flatten_util.ravel_pytree(y)

    def whole(flat):
        first, second = (lower(x, unravel(flat), part) for part in parts)
        return 0.25 * first + 0.75 * second

    expected = np.linalg.eigvalsh(jax.hessian(whole)(flat)).max()
    actual = largest_curvature(problem, devices, x, y, weights=[1.0, 3.0])
    np.testing.assert_allclose(actual, expected, rtol=1e-2)
