"""What a step with a hypergradient estimator draws."""

import jax

from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics.hypergradients import Hypergradient, Samples


def draw_samples(
    data: DeviceData, key: RandomKey, batch_size: int, hypergradient: Hypergradient
) -> Samples:
    """Draw ξ, ζ, ζ_0 and ζ_1 … ζ_Q, all independent.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel import NeumannSeries
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> examples = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> samples = draw_samples(
        ...     StoredData(examples, examples),
        ...     jax.random.key(0),
        ...     batch_size=2,
        ...     hypergradient=NeumannSeries(terms=3, scale=0.5),
        ... )
        >>> len(samples.curvature), samples.cross.shape
        (3, (2,))
    """
    upper_key, lower_key = jax.random.split(key)
    (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
    lower, cross, *curvature = data.lower.draw(
        lower_key, batch_size, draws=2 + hypergradient.curvature_draws
    )
    return Samples(upper, lower, cross, tuple(curvature))


def draw_hypergradient_samples(
    data: DeviceData, key: RandomKey, batch_size: int, hypergradient: Hypergradient
) -> Samples:
    """Draw ξ, ζ_0 and ζ_1 … ζ_Q, where no lower gradient is wanted.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel import NeumannSeries
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> examples = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> data, series = StoredData(examples, examples), NeumannSeries(3, 0.5)
        >>> draw_hypergradient_samples(data, jax.random.key(0), 2, series).lower
        ()
    """
    upper_key, lower_key = jax.random.split(key)
    (upper,) = data.upper.draw(upper_key, batch_size, draws=1)
    cross, *curvature = data.lower.draw(
        lower_key, batch_size, draws=1 + hypergradient.curvature_draws
    )
    return Samples(upper, (), cross, tuple(curvature))
