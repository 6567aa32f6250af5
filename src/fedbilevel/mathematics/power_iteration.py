"""The largest curvature of one batch, in few products and inside compiled code."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Lower

PRODUCTS = 4
"""Of one measurement. The largest of a thousand eigenvalues is then found to a third,
even among others of half its size, and steps of one over it are stable."""


def curvature_of(
    product: Callable[[Lower], Lower],
    like: Lower,
    key: Key[Array, ""],
    products: int = PRODUCTS,
) -> Float[Array, ""]:
    """Return a lower estimate of the largest absolute eigenvalue of a symmetric matrix.

    Args:
        product: the product of the matrix with a vector.
        like: any vector of the space.
        key: of the random vector that the powers are taken of.
        products: how many; the more, the closer.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> diagonal = jnp.array([1.0, 2.0, 10.0])
        >>> product = lambda vector: diagonal * vector
        >>> found = curvature_of(product, diagonal, jax.random.key(0), products=9)
        >>> round(float(found), 3)
        10.0
    """
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    vector = jax.tree.unflatten(
        structure,
        [
            jax.random.normal(one, jnp.shape(leaf), jnp.result_type(leaf))
            for one, leaf in zip(keys, leaves, strict=True)
        ],
    )

    def following(vector: Lower, _: None) -> tuple[Lower, None]:
        size = jnp.sqrt(tree.squared_norm(vector))
        # One over an infinite size would be 0, and so would the curvature.
        size = jnp.where(jnp.isfinite(size), size, jnp.nan)
        return product(tree.scale(1.0 / jnp.where(size == 0, 1.0, size), vector)), None

    vector, _ = jax.lax.scan(following, vector, None, length=products)
    return jnp.sqrt(tree.squared_norm(vector))
