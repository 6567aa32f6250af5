"""A bilevel problem: two losses and the five derivative oracles they imply."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
from jaxtyping import Array, Float, PyTree

Upper: TypeAlias = PyTree
"""The upper variable x, or a tree of the same structure."""
Lower: TypeAlias = PyTree
"""The lower variable y, or a tree of the same structure."""
Batch: TypeAlias = PyTree
"""Examples: a pytree whose leaves share their leading axis."""


@runtime_checkable
class Loss(Protocol):
    """A scalar loss of both variables, the mean over the examples of a batch."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Float[Array, ""]:
        """Return the mean loss."""


@runtime_checkable
class UpperGradients(Protocol):
    """∇x f and ∇y f."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> tuple[Upper, Lower]:
        """Return both gradients of the upper loss."""


@runtime_checkable
class LowerGradient(Protocol):
    """∇y g."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Lower:
        """Return the gradient of the lower loss in y."""


@runtime_checkable
class LowerGradientX(Protocol):
    """∇x g."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Upper:
        """Return the gradient of the lower loss in x."""


@runtime_checkable
class HessianProduct(Protocol):
    """∇²yy g · vector."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Lower:
        """Return the product with the lower loss's Hessian in y."""


@runtime_checkable
class CrossProduct(Protocol):
    """∇²xy g · vector."""

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Upper:
        """Return the product with the mixed second derivative of the lower loss."""


class LowerProducts(NamedTuple):
    """Products with second derivatives of the lower loss at one point, on one batch.

    Attributes:
        hessian: function from v to ∇²yy g · v.
        cross: function from v to ∇²xy g · v.
    """

    hessian: Callable[[Lower], Lower]
    cross: Callable[[Lower], Upper]


@dataclass(frozen=True, init=False)
class BilevelProblem:
    """min_x f(x, y*(x)) with y*(x) = argmin_y g(x, y): the paper's equation (1.1).

    A user defines the two losses as functions of (x, y, batch), where a batch has the
    structure of a device's upper or lower examples. Automatic differentiation supplies
    the five oracles without forming a matrix. Estimators and algorithms use only the
    oracles, so any oracle can be replaced by a closed form.

    Attributes:
        upper_loss: f, the mean over a batch.
        lower_loss: g, the mean over a batch, strongly convex in y.
        upper_gradients: ∇x f and ∇y f.
        lower_gradient: ∇y g.
        lower_gradient_x: ∇x g, which replaces second derivatives in first-order
            methods.
        hessian_product: ∇²yy g · vector.
        cross_product: ∇²xy g · vector.
        products: function of (x, y, batch) that reads the lower loss once for any
            number of products with one batch; None if each product reads it.
        view: the same problem as functions of JAX's arrays, if losses and oracles are
            functions of PyTorch's tensors (`fedbilevel.torch.bilevel_problem`).

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> x, y, batch = jnp.array(1.0), jnp.array(2.0), jnp.array([1.0, 3.0])
        >>> float(problem.hessian_product(x, y, batch, jnp.array(1.0)))
        2.0
        >>> float(problem.cross_product(x, y, batch, jnp.array(1.0)))
        -4.0
    """

    upper_loss: Loss
    lower_loss: Loss
    upper_gradients: UpperGradients
    lower_gradient: LowerGradient
    lower_gradient_x: LowerGradientX
    hessian_product: HessianProduct
    cross_product: CrossProduct
    products: Callable[[Upper, Lower, Batch], LowerProducts] | None
    view: "BilevelProblem | None"

    def __init__(
        self,
        upper_loss: Loss,
        lower_loss: Loss,
        *,
        upper_gradients: UpperGradients | None = None,
        lower_gradient: LowerGradient | None = None,
        lower_gradient_x: LowerGradientX | None = None,
        hessian_product: HessianProduct | None = None,
        cross_product: CrossProduct | None = None,
        products: Callable[[Upper, Lower, Batch], LowerProducts] | None = None,
        view: "BilevelProblem | None" = None,
    ) -> None:
        gradient = lower_gradient or _Gradient(lower_loss, argument=1)
        fields = {
            "upper_loss": upper_loss,
            "lower_loss": lower_loss,
            "upper_gradients": upper_gradients or _Gradients(upper_loss),
            "lower_gradient": gradient,
            "lower_gradient_x": lower_gradient_x or _Gradient(lower_loss, argument=0),
            "hessian_product": hessian_product or _HessianProduct(gradient),
            "cross_product": cross_product or _CrossProduct(lower_loss),
        }
        for name, function in fields.items():
            _require_callable(name, function)
            object.__setattr__(self, name, function)
        object.__setattr__(self, "products", products)
        object.__setattr__(self, "view", view)

    @property
    def for_jax(self) -> "BilevelProblem":
        """The problem as functions of JAX's arrays: the view, or the problem itself."""
        return self.view or self

    def map(self, wrap: Callable[[Callable[..., Any]], Any]) -> "BilevelProblem":
        """Return the problem with each loss and oracle in a wrapper.

        Example:
            >>> import jax.numpy as jnp
            >>> problem = BilevelProblem(jnp.add, jnp.subtract)
            >>> problem.map(lambda oracle: print).upper_loss("called")
            called
        """
        names = {item.name for item in fields(self)} - {"products", "view"}
        return BilevelProblem(**{name: wrap(getattr(self, name)) for name in names})


def require_double(problem: BilevelProblem) -> None:
    """Raise TypeError if JAX would call PyTorch back in single precision only.

    Callbacks run on other threads, which do not see `with jax.enable_x64(True)`.

    Example:
        >>> import jax.numpy as jnp
        >>> require_double(BilevelProblem(jnp.add, jnp.add))
    """
    if problem.view is None:
        return
    with ThreadPoolExecutor(1) as pool:
        is_double = pool.submit(jax.numpy.zeros, 0, float).result().dtype.itemsize == 8
    if not is_double:
        raise TypeError(
            "This needs the losses in double precision, which JAX does not pass to "
            "PyTorch. Call this first: jax.config.update('jax_enable_x64', True)."
        )


# The derived oracles are frozen dataclasses instead of closures, so that two problems
# with the same losses are equal and share one compiled program.
@dataclass(frozen=True)
class _Gradients:
    loss: Loss

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> tuple[Upper, Lower]:
        gradients: tuple[Upper, Lower] = jax.grad(self.loss, argnums=(0, 1))(
            x, y, batch
        )
        return gradients


@dataclass(frozen=True)
class _Gradient:
    loss: Loss
    argument: int

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> Upper | Lower:
        return jax.grad(self.loss, argnums=self.argument)(x, y, batch)


@dataclass(frozen=True)
class _HessianProduct:
    gradient: LowerGradient

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Lower:
        def gradient(y: Lower) -> Lower:
            return self.gradient(x, y, batch)

        return jax.jvp(gradient, (y,), (vector,))[1]


@dataclass(frozen=True)
class _CrossProduct:
    loss: Loss

    def __call__(self, x: Upper, y: Lower, batch: Batch, vector: Lower, /) -> Upper:
        # ∇x ⟨∇y g, vector⟩: the inner product is one forward-mode derivative of g.
        def slope(x: Upper) -> Float[Array, ""]:
            def loss(y: Lower) -> Float[Array, ""]:
                return self.loss(x, y, batch)

            derivative: Float[Array, ""] = jax.jvp(loss, (y,), (vector,))[1]
            return derivative

        return jax.grad(slope)(x)


def _require_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} is a {type(value).__name__}, expected a function. "
            "Pass a function of (x, y, batch)."
        )
