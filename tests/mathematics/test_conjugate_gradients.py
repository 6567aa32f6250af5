"""Conjugate gradients against dense linear algebra, and their diagnostics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel.mathematics import conjugate_gradients as cg

SIZE = 10


def matrix(condition: float) -> np.ndarray:
    generator = np.random.default_rng(0)
    basis, _ = np.linalg.qr(generator.normal(size=(SIZE, SIZE)))
    return np.asarray((basis * np.geomspace(1 / condition, 1, SIZE)) @ basis.T)


@jax.jit
def solved(hessian, right, tolerance, limit):
    # Trees of two leaves, as models have.
    def product(vector):
        image = hessian @ jnp.concatenate([vector["a"], vector["b"]])
        return {"a": image[:3], "b": image[3:]}

    return cg.solve(product, {"a": right[:3], "b": right[3:]}, tolerance, limit)


@pytest.mark.parametrize("condition", [1e2, 1e5])
def test_the_solution_and_the_bound_of_the_inverse_are_right(condition):
    hessian = matrix(condition)
    right = np.random.default_rng(1).normal(size=SIZE)
    state = solved(hessian, right, 1e-10, 1000)
    solution = np.concatenate([state.solution["a"], state.solution["b"]])
    np.testing.assert_allclose(solution, np.linalg.solve(hessian, right), rtol=1e-6)
    assert bool(state.converged)
    assert bool(state.convex)
    # The trace of the inverse is between 1 and 3 times its largest eigenvalue.
    assert condition * 0.999 < float(state.inverse_bound) < 3 * condition
    assert 0.1 < float(state.highest) <= 1


def test_products_needed_are_named_when_there_are_too_few():
    hessian, right = matrix(1e4), np.ones(SIZE)
    short = solved(hessian, right, 1e-8, 5)
    assert not bool(short.converged)
    assert int(short.products) == 5
    needed = int(cg.products_needed(short))
    used = int(solved(hessian, right, 1e-8, 1000).products)
    assert 5 < used <= needed < 1000


def test_negative_and_no_curvature_end_a_solve():
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))
    for last in (-0.3, 0.0):
        curvatures = np.append(np.linspace(0.5, 1.0, SIZE - 1), last)
        state = solved((basis * curvatures) @ basis.T, np.ones(SIZE), 1e-8, 1000)
        assert not bool(state.convex)
        assert last - 1e-12 <= float(state.lowest) < 1e-12
        assert np.isfinite(state.solution["b"]).all()
