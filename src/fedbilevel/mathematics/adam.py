"""Adam for trees of tensors: optax's is for arrays of JAX."""

from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from fedbilevel.mathematics import arrays, tree


class AdamState(NamedTuple):
    """The state of Adam.

    Attributes:
        count: number of steps.
        mu: moving average of gradients.
        nu: moving average of their squares.
    """

    count: Any
    mu: PyTree
    nu: PyTree


def first_state(parameters: PyTree) -> AdamState:
    """Return the state before the first step."""
    zero = tree.scale(0.0, parameters)
    return AdamState(arrays.constant(0, like=parameters), zero, zero)


def adam_step(
    gradient: PyTree,
    state: AdamState,
    parameters: PyTree,
    *,
    learning_rate: tree.Scalar,
    b1: tree.Scalar = 0.9,
    b2: tree.Scalar = 0.999,
    eps: tree.Scalar = 1e-8,
) -> tuple[PyTree, AdamState]:
    """Return the parameters after a step, and the next state.

    References:
        Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv 1412.6980,
        Algorithm 1.
    """
    count = state.count + 1
    mu = tree.add_scaled(tree.scale(b1, state.mu), 1 - b1, gradient)
    squares = jax.tree.map(lambda leaf: leaf * leaf, gradient)
    nu = tree.add_scaled(tree.scale(b2, state.nu), 1 - b2, squares)
    power = arrays.number(count, like=gradient)
    first, second = (1 - beta**power for beta in (b1, b2))
    direction = jax.tree.map(
        lambda m, v: (
            (m / arrays.cast(first, m))
            / (arrays.sqrt(v / arrays.cast(second, v)) + eps)
        ),
        mu,
        nu,
    )
    following = tree.add_scaled(parameters, -learning_rate, direction)
    return following, AdamState(count, mu, nu)
