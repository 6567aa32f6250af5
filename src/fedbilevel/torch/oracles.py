"""The five derivative oracles of losses of PyTorch, by `torch.func`."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.func import grad, jvp

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import (
    Batch,
    BilevelProblem,
    Loss,
    Lower,
    LowerGradient,
    Upper,
)
from fedbilevel.torch.jax_view import view_for_jax


def bilevel_problem(
    upper_loss: Loss, lower_loss: Loss, **oracles: Any
) -> BilevelProblem:
    """Return a problem whose losses are functions of tensors.

    The oracles are derivatives by `torch.func`. Products with second derivatives use
    forward mode, and a second reverse pass where an operation has no forward mode.

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
    derived: dict[str, Any] = {
        "upper_gradients": _Gradients(upper_loss),
        "lower_gradient": gradient,
        "lower_gradient_x": _Gradient(lower_loss, 0),
        "hessian_product": _HessianProduct(gradient),
        "cross_product": _CrossProduct(lower_loss),
    }
    problem = BilevelProblem(upper_loss, lower_loss, **{**derived, **oracles})
    return replace(problem, view=view_for_jax(problem))


@dataclass(frozen=True)
class _Gradients:
    loss: Loss

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> tuple[Upper, Lower]:
        gradients: tuple[Upper, Lower] = grad(self.loss, argnums=(0, 1))(x, y, batch)
        return gradients


@dataclass(frozen=True)
class _Gradient:
    loss: Loss
    argument: int

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Upper | Lower:
        return grad(self.loss, argnums=self.argument)(x, y, batch)


@dataclass(frozen=True)
class _HessianProduct:
    gradient: LowerGradient

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Lower:
        def gradient(y: Lower) -> Lower:
            return self.gradient(x, y, batch)

        def slope(y: Lower) -> Tensor:
            return tree.inner(gradient(y), vector)

        try:
            return jvp(gradient, (y,), (vector,))[1]
        except NotImplementedError:
            # The Hessian is symmetric, so this is the same product.
            return grad(slope)(y)


@dataclass(frozen=True)
class _CrossProduct:
    loss: Loss

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Upper:
        def forward(x: Upper) -> Tensor:
            def loss(y: Lower) -> Tensor:
                return self.loss(x, y, batch)

            derivative: Tensor = jvp(loss, (y,), (vector,))[1]
            return derivative

        def reverse(x: Upper) -> Tensor:
            return tree.inner(grad(self.loss, argnums=1)(x, y, batch), vector)

        try:
            return grad(forward)(x)
        except NotImplementedError:
            return grad(reverse)(x)
