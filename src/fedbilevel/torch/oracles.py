"""The five derivative oracles of losses of PyTorch.

Products with second derivatives are derivatives of the gradient by a second backward
pass. With forward mode a product takes three times as long, since many operations have
no formula of their own for it. Outside of `torch.func.vmap`, `torch.autograd` computes
the derivatives, in half of the time of `torch.func`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten
from jaxtyping import PyTree
from torch.func import grad, vjp

from fedbilevel.mathematics.problem import (
    Batch,
    BilevelProblem,
    Loss,
    Lower,
    LowerGradient,
    LowerProducts,
    Upper,
)
from fedbilevel.torch.jax_view import view_for_jax


def bilevel_problem(
    upper_loss: Loss, lower_loss: Loss, **oracles: Any
) -> BilevelProblem:
    """Return a problem whose losses are functions of tensors.

    The oracles are derivatives by PyTorch. Products with second derivatives need
    operations that can be differentiated twice.

    Args:
        upper_loss: f, a function of (x, y, batch), the mean over a batch.
        lower_loss: g, the mean over a batch, strongly convex in y.
        oracles: oracles in closed form, by their names in `BilevelProblem`.

    Example:
        >>> import torch
        >>> problem = bilevel_problem(
        ...     upper_loss=lambda x, y, batch: torch.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: torch.mean((y - x * batch) ** 2),
        ... )
        >>> x, y, batch = torch.tensor(3.0), torch.tensor(1.0), torch.ones(2)
        >>> float(problem.cross_product(x, y, batch, torch.tensor(1.0)))
        -2.0
    """
    gradient = oracles.pop("lower_gradient", None) or _Gradient(lower_loss, 1)
    slope = _Slope(lower_loss, gradient)
    derived: dict[str, Any] = {
        "upper_gradients": _Gradients(upper_loss),
        "lower_gradient": gradient,
        "lower_gradient_x": _Gradient(lower_loss, 0),
        "hessian_product": _HessianProduct(slope),
        "cross_product": _CrossProduct(slope),
        "products": _Products(slope),
    }
    if {"hessian_product", "cross_product"} & set(oracles):
        derived["products"] = None
    problem = BilevelProblem(upper_loss, lower_loss, **{**derived, **oracles})
    return replace(problem, view=view_for_jax(problem))


# The oracles are frozen dataclasses instead of closures, so that two problems with the
# same losses are equal.
@dataclass(frozen=True)
class _Gradients:
    loss: Loss

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> tuple[Upper, Lower]:
        leaves = _leaves((x, y))
        if leaves is None:
            gradients: tuple[Upper, Lower] = grad(self.loss, argnums=(0, 1))(
                x, y, batch
            )
            return gradients
        gradients = _pull_back(_value(self.loss, *leaves, batch), leaves)
        return gradients


@dataclass(frozen=True)
class _Gradient:
    loss: Loss
    argument: int

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Upper | Lower:
        leaves = _leaves((x, y)[self.argument])
        if leaves is None:
            return grad(self.loss, argnums=self.argument)(x, y, batch)
        point = (leaves, y) if self.argument == 0 else (x, leaves)
        return _pull_back(_value(self.loss, *point, batch), leaves)


@dataclass(frozen=True)
class _Slope:
    """∇y g, which can be differentiated again."""

    loss: Loss
    gradient: LowerGradient

    def __call__(self, x: Upper, y: Lower, batch: Batch) -> Lower:
        """Return the gradient at leaves of a graph."""
        if not isinstance(self.gradient, _Gradient):
            return _value(self.gradient, x, y, batch)
        return _pull_back(_value(self.loss, x, y, batch), y, create_graph=True)


@dataclass(frozen=True)
class _HessianProduct:
    slope: _Slope

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Lower:
        leaf = _leaves(y)
        if leaf is None:
            return _vjp_of(lambda y: self.slope.gradient(x, y, batch), y)(vector)
        return _pull_back(self.slope(x, leaf, batch), leaf, vector)


@dataclass(frozen=True)
class _CrossProduct:
    slope: _Slope

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Upper:
        leaves = _leaves((x, y))
        if leaves is None:
            return _vjp_of(lambda x: self.slope.gradient(x, y, batch), x)(vector)
        return _pull_back(self.slope(leaves[0], leaves[1], batch), leaves[0], vector)


@dataclass(frozen=True)
class _Products:
    slope: _Slope

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> LowerProducts:
        leaves = _leaves((x, y))
        if leaves is None:
            return LowerProducts(
                _vjp_of(lambda y: self.slope.gradient(x, y, batch), y),
                # A product with the Hessian does not pay for the derivative in x.
                lambda v: _vjp_of(lambda x: self.slope.gradient(x, y, batch), x)(v),
            )
        slope = self.slope(leaves[0], leaves[1], batch)
        return LowerProducts(
            lambda v: _pull_back(slope, leaves[1], v, retain_graph=True),
            lambda v: _pull_back(slope, leaves[0], v, retain_graph=True),
        )


def _vjp_of(function: Callable[[PyTree], PyTree], at: PyTree) -> Callable[..., Any]:
    """Return the function from v to vᵀJ, where J is the Jacobian, by `torch.func`."""
    _, pull_back = vjp(function, at)
    return lambda vector: pull_back(vector)[0]


def _leaves(values: PyTree) -> Any:
    """Return tensors that require gradients; None inside a transform of `torch.func`.

    There, PyTorch refuses to change what a tensor requires.
    """
    tensors, structure = tree_flatten(values)
    try:
        return tree_unflatten(
            structure, [each.detach().requires_grad_() for each in tensors]
        )
    except RuntimeError:
        return None


def _value(function: Callable[..., Any], *arguments: PyTree) -> Any:
    if torch.is_grad_enabled():
        return function(*arguments)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "torch.inference_mode() keeps no graph for derivatives. Call the run "
            "outside of it, or use torch.no_grad()."
        )
    with torch.enable_grad():
        return function(*arguments)


# The functions above and below avoid all Python that a small model would notice.
def _pull_back(
    outputs: PyTree, inputs: PyTree, vectors: PyTree = None, **options: Any
) -> Any:
    """Return vᵀJ, where J is the Jacobian of outputs with respect to inputs."""
    leaves, structure = tree_flatten(inputs)
    ends = tree_leaves(outputs)
    directions = None if vectors is None else tree_leaves(vectors)
    needed = [end.requires_grad for end in ends]
    if not all(needed):  # The gradient of a linear loss is a constant.
        if not any(needed):
            return tree_unflatten(structure, list(map(torch.zeros_like, leaves)))
        ends = list(compress(ends, needed))
        directions = directions and list(compress(directions, needed))
    try:
        slopes = torch.autograd.grad(
            ends, leaves, directions, allow_unused=True, **options
        )
    except RuntimeError as error:
        if "is not implemented" in str(error):
            error.add_note(
                "This operation has no second derivative in PyTorch. Replace it: "
                'attention has one with attn_implementation="eager" in transformers, '
                "or within torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            )
        raise
    if any(slope is None for slope in slopes):
        slopes = tuple(
            torch.zeros_like(leaf) if slope is None else slope
            for leaf, slope in zip(leaves, slopes, strict=True)
        )
    return tree_unflatten(structure, slopes)
