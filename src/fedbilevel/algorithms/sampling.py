"""Draw the independent batches of a local step, one for each oracle."""

from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import keys
from fedbilevel.mathematics.hypergradients import Samples


def draw_samples(
    data: DeviceData, key: RandomKey, batch_size: int, curvature_draws: int = 1
) -> Samples:
    """Draw ξ for ∇f, ζ for ∇y g, ζ_0 for J and ζ_1 … ζ_Q for H, all independent.

    Methods with an adjoint z need one Hessian product per step, methods with a Neumann
    series need Q.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> examples = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> samples = draw_samples(
        ...     StoredData(examples, examples),
        ...     jax.random.key(0),
        ...     batch_size=2,
        ...     curvature_draws=3,
        ... )
        >>> len(samples.curvature), samples.cross.shape
        (3, (2,))
    """
    upper_key, lower_key = keys.split(key)
    (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
    lower, cross, *curvature = data.lower.draw(
        lower_key, batch_size, draws=2 + curvature_draws
    )
    return Samples(upper, lower, cross, tuple(curvature))


def draw_hypergradient_samples(
    data: DeviceData, key: RandomKey, batch_size: int, curvature_draws: int
) -> Samples:
    """Draw ξ, ζ_0 and ζ_1 … ζ_Q, for a hypergradient without a lower gradient.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> examples = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> data = StoredData(examples, examples)
        >>> draw_hypergradient_samples(data, jax.random.key(0), 2, 3).lower
        ()
    """
    upper_key, lower_key = keys.split(key)
    (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
    cross, *curvature = data.lower.draw(
        lower_key, batch_size, draws=1 + curvature_draws
    )
    return Samples(upper, (), cross, tuple(curvature))
