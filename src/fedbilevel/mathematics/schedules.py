"""Learning rates: a number, or a function of the global step t."""

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.settings import Range, Rate, Role, check_ranges, register
from fedbilevel.mathematics.tree import Scalar

Step: TypeAlias = int | Int[Array, "*devices"]
"""The global step t: a Python number, or an array where it is traced."""


@runtime_checkable
class Schedule(Protocol):
    """A learning rate that depends on the global step t, as optax's schedules do."""

    def __call__(self, step: int | Int[Array, ""], /) -> Scalar:
        """Return η_t."""


LearningRate: TypeAlias = Annotated[
    Scalar | Schedule,
    Range(above=0.0, kind="a number or a schedule"),
    Role.LEARNING_RATE,
]
"""The learning rate, which multiplies all other rates."""


@register
@dataclass(frozen=True)
class CubeRootDecay:
    """η_t = scale / max(t + 2, plateau)^(1/3): the decaying rate of Theorem 3.

    The paper writes η_t = (K^(2/3) / L̂) / (w_t + t)^(1/3) with a w_t that keeps the
    denominator constant in the first steps: `plateau` is that constant.

    Attributes:
        scale: K^(2/3) / L̂ in the theorem.
        plateau: last step of the constant rate.

    Example:
        >>> from fedbilevel import CubeRootDecay
        >>> rate = CubeRootDecay(scale=1.0, plateau=8.0)
        >>> [round(float(rate(t)), 3) for t in (0, 6, 62)]
        [0.5, 0.5, 0.25]
    """

    scale: Rate
    plateau: Rate = 2.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, step: int | Int[Array, ""], /) -> Scalar:
        """Return η_t."""
        numbers = step, self.scale, self.plateau
        if all(isinstance(value, int | float) for value in numbers):
            # The steps of a run of PyTorch are Python numbers.
            return self.scale / max(step + 2, self.plateau) ** (1 / 3)
        return self.scale / jnp.cbrt(
            jnp.maximum(jnp.asarray(step, float) + 2, self.plateau)
        )


def rate_at(learning_rate: LearningRate, step: int | Int[Array, ""]) -> Scalar:
    """Return η_t of a number or a schedule.

    Example:
        >>> import jax.numpy as jnp
        >>> rate_at(0.5, jnp.array(3))
        0.5
    """
    if not callable(learning_rate):
        return learning_rate
    # A schedule need not know tensors.
    return learning_rate(int(step) if arrays.is_tensor(step) else step)


def as_tree(learning_rate: LearningRate) -> LearningRate:
    """Return the rate as a pytree, for use as an argument of compiled code.

    A schedule that is a plain function, such as optax's, becomes part of the tree's
    structure.

    Example:
        >>> import jax
        >>> jax.tree.leaves(as_tree(lambda step: 0.1))
        []
    """
    if callable(learning_rate) and _is_leaf(learning_rate):
        return jax.tree_util.Partial(learning_rate)
    return learning_rate


def _is_leaf(value: Any) -> bool:
    return bool(jax.tree_util.all_leaves([value]))
