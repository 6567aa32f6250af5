"""A problem of PyTorch as functions of JAX, for all that JAX compiles.

Compiled programs call PyTorch back. So every engine, transform, metric and diagnosis
takes a problem of PyTorch; devices run one after another then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.mathematics.arrays import on_host
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.torch.conversion import to_tensors


def view_for_jax(problem: BilevelProblem) -> BilevelProblem:
    """Return the problem whose losses and oracles take and return arrays of JAX.

    Args:
        problem: problem whose losses and oracles take tensors.

    Example:
        >>> import torch
        >>> def loss(x, y, batch):
        ...     return torch.mean((y - x * batch) ** 2)
        >>> view = view_for_jax(BilevelProblem(loss, loss))
        >>> x, y, batch = jnp.array(3.0), jnp.array(1.0), jnp.ones(2)
        >>> float(jax.jit(view.lower_loss)(x, y, batch))
        4.0
    """
    return BilevelProblem(
        _Scalar(problem.upper_loss),
        _Scalar(problem.lower_loss),
        upper_gradients=_Call(problem.upper_gradients, (0, 1)),
        lower_gradient=_Call(problem.lower_gradient, 1),
        lower_gradient_x=_Call(problem.lower_gradient_x, 0),
        hessian_product=_Call(problem.hessian_product, 1),
        cross_product=_Call(problem.cross_product, 0),
    )


@dataclass(frozen=True)
class _Scalar:
    loss: Callable[..., Any]

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Any:
        dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves((x, y))]
        form = jax.ShapeDtypeStruct((), jnp.result_type(*dtypes))
        return _call_back(self.loss, form, x, y, batch)


@dataclass(frozen=True)
class _Call:
    oracle: Callable[..., Any]
    like: int | tuple[int, int]
    """The arguments that the results have the form of."""

    def __call__(self, *arguments: PyTree) -> Any:
        if isinstance(self.like, int):
            like = arguments[self.like]
        else:
            like = tuple(arguments[position] for position in self.like)
        form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)),
            like,
        )
        return _call_back(self.oracle, form, *arguments)


def _call_back(function: Callable[..., Any], form: PyTree, *arguments: PyTree) -> Any:
    def call(*arguments: PyTree) -> PyTree:
        # JAX's settings of this thread are not those of the caller.
        return jax.tree.map(
            lambda leaf, expected: np.asarray(on_host(leaf)).astype(expected.dtype),
            function(*to_tensors(arguments)),
            form,
        )

    return jax.pure_callback(call, form, *arguments, vmap_method="sequential")
