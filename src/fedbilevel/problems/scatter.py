"""Random arrays with an exact mean."""

import numpy as np
from jaxtyping import Float


def scatter(
    generator: np.random.Generator,
    mean: Float[np.ndarray, "*shape"],
    count: int,
    deviation: float,
) -> Float[np.ndarray, "count *shape"]:
    """Return normal arrays about a mean, which is their exact average.

    Args:
        generator: source of randomness.
        mean: average of the arrays.
        count: number of arrays.
        deviation: standard deviation of each entry.

    Raises:
        ValueError: if deviation is above 0 for a single array.

    Example:
        >>> import numpy as np
        >>> drawn = scatter(np.random.default_rng(0), np.ones(2), 4, deviation=10.0)
        >>> np.round(drawn.mean(axis=0), 12)
        array([1., 1.])
    """
    _check(count, deviation)
    noise = generator.normal(size=(count, *mean.shape))
    noise -= noise.mean(axis=0)
    # Centring removes 1/count of the variance; this factor restores it.
    factor = np.sqrt(count / max(1, count - 1))
    return np.asarray(mean + deviation * factor * noise)


def scatter_curvature(
    generator: np.random.Generator,
    mean: Float[np.ndarray, "size size"],
    count: int,
    deviation: float,
) -> Float[np.ndarray, "count size size"]:
    """Return positive definite matrices about a mean, which is their exact average.

    With mean = L Lᵀ, W_i = (I + deviation R_i)(I + deviation R_i)ᵀ for normal R_i, and
    the average of the W_i = N Nᵀ, matrix i is L N⁻¹ W_i N⁻ᵀ Lᵀ. It is positive
    definite for any deviation.

    Args:
        generator: source of randomness.
        mean: positive definite matrix.
        count: number of matrices.
        deviation: 0 for no scatter; 1 for a scatter about as large as the mean.

    Raises:
        ValueError: if deviation is above 0 for a single matrix.

    Example:
        >>> import numpy as np
        >>> drawn = scatter_curvature(np.random.default_rng(0), np.eye(2), 4, 10.0)
        >>> bool(np.allclose(drawn.mean(axis=0), np.eye(2)))
        True
        >>> bool(np.all(np.linalg.eigvalsh(drawn) > 0))
        True
    """
    _check(count, deviation)
    size = len(mean)
    noise = generator.normal(size=(count, size, size)) / np.sqrt(size)
    roots = np.eye(size) + deviation * noise
    average = np.mean(roots @ roots.transpose(0, 2, 1), axis=0)
    whitened = np.linalg.solve(np.linalg.cholesky(average)[None], roots)
    factors = np.linalg.cholesky(mean) @ whitened
    return np.asarray(factors @ factors.transpose(0, 2, 1))


def _check(count: int, deviation: float) -> None:
    if deviation < 0 or count < 1:
        raise ValueError(
            f"The count is {count}, expected at least 1, and the deviation (noise or "
            f"heterogeneity) is {deviation}, expected at least 0."
        )
    if count == 1 and deviation:
        raise ValueError(
            f"The deviation (noise or heterogeneity) is {deviation}, but a single "
            "device or example equals the mean. Use at least 2, or a deviation of 0."
        )
