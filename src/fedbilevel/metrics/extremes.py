"""The largest values of quadratic and trilinear forms, without their matrices."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.mathematics import tree

Vector: TypeAlias = Float[Array | np.ndarray, "size"]

DENSE_SIZE = 32
"""Largest size of a dense matrix: Lanczos' method would store 20 vectors."""
LANCZOS_RESTARTS = 1000
ALTERNATIONS = 30


def extreme_eigenvalues(
    product: Callable[[Vector], Vector], start: Vector, tolerance: float
) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of a symmetric matrix.

    Args:
        product: function that returns the product of the matrix with a vector.
        start: random vector, not orthogonal to an extreme eigenvector.
        tolerance: relative error.

    Raises:
        ArithmeticError: if the eigenvalues do not converge to the tolerance.

    Example:
        >>> import numpy as np
        >>> low, high = extreme_eigenvalues(
        ...     lambda vector: np.arange(1.0, 101.0) * vector,
        ...     start=np.random.default_rng(0).normal(size=100),
        ...     tolerance=1e-9,
        ... )
        >>> round(low, 6), round(high, 6)
        (1.0, 100.0)
    """
    values = _eigenvalues(product, start, tolerance, "BE", count=2)
    return float(np.min(values)), float(np.max(values))


def spectral_norm(
    product: Callable[[Vector], Vector], start: Vector, tolerance: float
) -> float:
    """Return the largest absolute eigenvalue of a symmetric matrix.

    Args:
        product: function that returns the product of the matrix with a vector.
        start: random vector, not orthogonal to the eigenvector.
        tolerance: relative error.

    Raises:
        ArithmeticError: if the eigenvalue does not converge to the tolerance.

    Example:
        >>> import numpy as np
        >>> norm = spectral_norm(
        ...     lambda vector: np.arange(-100.0, 50.0) * vector,
        ...     start=np.random.default_rng(0).normal(size=150),
        ...     tolerance=1e-9,
        ... )
        >>> round(norm, 6)
        100.0
    """
    return float(np.max(np.abs(_eigenvalues(product, start, tolerance, "LM", count=1))))


def _eigenvalues(
    product: Callable[[Vector], Vector],
    start: Vector,
    tolerance: float,
    which: str,
    count: int,
) -> Float[np.ndarray, "count"]:
    size = len(start)
    if size <= DENSE_SIZE:
        rows = [np.asarray(product(row)) for row in np.eye(size)]
        return np.linalg.eigvalsh(np.stack(rows))
    if not np.any(product(start)):  # Lanczos' method cannot continue from zero.
        return np.zeros(count)
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = LinearOperator(
        (size, size), matvec=lambda v: np.asarray(product(v.ravel())), dtype=float
    )
    try:
        values: Float[np.ndarray, "count"] = eigsh(
            operator,
            k=count,
            which=which,
            v0=np.asarray(start),
            tol=tolerance,
            maxiter=LANCZOS_RESTARTS,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence as error:
        raise ArithmeticError(
            f"The extreme eigenvalues of a Hessian did not converge to "
            f"tolerance={tolerance:.2g}. Raise the tolerance, or add a penalty to the "
            "loss."
        ) from error
    return values


def largest_trilinear(
    form: Callable[[Vector, Vector], Vector],
    left: Vector,
    right: Vector,
    starts: Float[Array | np.ndarray, "starts 2 size"],
) -> Float[Array, ""]:
    """Return the largest T(d, u, v) found, T symmetric and trilinear, of unit vectors.

    For two fixed vectors, T gives the best third vector. Each vector is replaced in
    turn, so the value never decreases, but it may converge to a local maximum.

    Args:
        form: T(a, b, ·), as a vector.
        left: mask of the entries in which u may differ from zero; d has no mask.
        right: mask of the entries in which v may differ from zero.
        starts: initial values of d and v, one pair for each search.

    Example:
        >>> import jax.numpy as jnp
        >>> weights, everywhere = jnp.array([1.0, -3.0]), jnp.ones(2)
        >>> float(
        ...     largest_trilinear(
        ...         lambda a, b: weights * a * b,
        ...         everywhere,
        ...         everywhere,
        ...         starts=jnp.array([[[0.6, 0.8], [0.8, 0.6]]]),
        ...     )
        ... )
        3.0
    """

    def improve(
        iteration: Int[Array, ""], vectors: tuple[Vector, Vector, Vector]
    ) -> tuple[Vector, Vector, Vector]:
        d, _, v = vectors
        u = _unit(left * form(d, v))
        v = _unit(right * form(d, u))
        return _unit(form(u, v)), u, v

    def search(start: Float[Array, "2 size"]) -> Float[Array, ""]:
        d, v = start
        first = d, v, _unit(right * v)
        _, u, v = jax.lax.fori_loop(0, ALTERNATIONS, improve, first)
        return jnp.sqrt(tree.squared_norm(form(u, v)))

    return jnp.max(jax.lax.map(search, jnp.asarray(starts)))


def _unit(vector: Vector) -> Vector:
    # If the form vanishes, all directions are equally good, and zero is returned.
    return vector / jnp.maximum(jnp.sqrt(tree.squared_norm(vector)), 1e-30)
