"""Power iteration for the largest curvature of one batch, inside compiled code."""

import math
from collections.abc import Callable

import jax
from jaxtyping import Float

from fedbilevel.mathematics import arrays, keys, loops, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import Lower

PRODUCTS = 4
"""Number of products of one measurement. With 4, the largest of a thousand eigenvalues
is estimated within a third, even if the others are half as large; steps of length 1
over the estimate are stable."""


def curvature_of(
    product: Callable[[Lower], Lower],
    like: Lower,
    key: keys.RandomKey,
    products: int = PRODUCTS,
) -> Float[Array, ""]:
    """Return a lower estimate of the largest absolute eigenvalue of a symmetric matrix.

    Args:
        product: function from a vector to the matrix times the vector.
        like: any vector of the space.
        key: random key of the initial vector.
        products: number of products; more products give a closer estimate.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> diagonal = jnp.array([1.0, 2.0, 10.0])
        >>> product = lambda vector: diagonal * vector
        >>> largest = curvature_of(product, diagonal, jax.random.key(0), products=9)
        >>> round(float(largest), 3)
        10.0
    """
    leaves, structure = jax.tree.flatten(like)
    random_keys = keys.split(key, len(leaves))
    vector = jax.tree.unflatten(structure, list(map(keys.normal, random_keys, leaves)))

    def multiply(vector: Lower) -> Lower:
        size = arrays.sqrt(tree.squared_norm(vector))
        # The inverse of an infinite size is 0, and the curvature would be 0 as well.
        size = arrays.where(arrays.isfinite(size), size, math.nan)
        return product(tree.scale(1.0 / arrays.where(size == 0, 1.0, size), vector))

    vector = loops.repeat(multiply, vector, products)
    return arrays.sqrt(tree.squared_norm(vector))
