"""A quadratic as a task: its losses, and examples with noise."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, Range, Seed, check_ranges
from fedbilevel.problems.built_in import template
from fedbilevel.problems.quadratic import Quadratic, random_quadratic
from fedbilevel.problems.scatter import scatter, scatter_curvature
from fedbilevel.problems.task import Task


class UpperRows(NamedTuple):
    """Examples of f: ½‖y − target‖² + slopeᵀy + shiftᵀx + ½ r‖x‖².

    Attributes:
        target: b_k, the same for all examples of a device.
        slope: noise of mean zero. Noise in the target would add a constant to f_k.
        shift: c_k with noise.
    """

    target: Float[Array | np.ndarray, "examples lower"]
    slope: Float[Array | np.ndarray, "examples lower"]
    shift: Float[Array | np.ndarray, "examples upper"]


class LowerRows(NamedTuple):
    """Examples of g: ½ yᵀ matrix y − yᵀ(coupling x + offset).

    Attributes:
        matrix: A_k with noise.
        coupling: C_k with noise.
        offset: d_k with noise.
    """

    matrix: Float[Array | np.ndarray, "examples lower lower"]
    coupling: Float[Array | np.ndarray, "examples lower upper"]
    offset: Float[Array | np.ndarray, "examples lower"]


def quadratic_task(
    quadratic: Quadratic,
    *,
    examples: int = 100,
    noise: float = 0.0,
    curvature_noise: float = 0.0,
    seed: int = 0,
) -> Task:
    """Return a quadratic as a task; its closed forms are exact for the examples.

    Each device's examples are scattered about its quadratic, which is their exact mean.
    Homogeneous devices share the same examples. x and y start at zero. The metric
    `distance` is ‖x − x*‖.

    A `NeumannSeries` needs a scale below the inverse of the largest eigenvalue of the
    examples' matrices: without `curvature_noise`, of `quadratic.matrices`.

    Args:
        quadratic: mean of the examples of each device.
        examples: number of examples of each loss on each device.
        noise: standard deviation of each entry of ∇x f, ∇y f and ∇y g over the
            examples of a device.
        curvature_noise: standard deviation of each entry of C_k, and the deviation of
            the A_k in `scatter_curvature`, which keeps them positive definite.
        seed: seed of the noise.

    Raises:
        ValueError: if a single example has noise.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> quadratic = random_quadratic(devices=2, heterogeneity=0.5)
        >>> task = quadratic_task(quadratic, noise=10.0)
        >>> round(task.metrics["distance"](quadratic.solution(), task.y), 6)
        0.0
    """
    generator = np.random.default_rng(seed)

    def draw_examples(device: int) -> LocalExamples:
        target = np.tile(quadratic.targets[device], (examples, 1))
        zero = np.zeros(target.shape[1])
        return LocalExamples(
            upper=UpperRows(
                target,
                scatter(generator, zero, examples, noise),
                scatter(generator, quadratic.shifts[device], examples, noise),
            ),
            lower=LowerRows(
                scatter_curvature(
                    generator, quadratic.matrices[device], examples, curvature_noise
                ),
                scatter(
                    generator, quadratic.couplings[device], examples, curvature_noise
                ),
                scatter(generator, quadratic.offsets[device], examples, noise),
            ),
        )

    count = len(quadratic.matrices)
    parts = (
        quadratic.matrices,
        quadratic.couplings,
        quadratic.offsets,
        quadratic.targets,
        quadratic.shifts,
    )
    if all(np.array_equal(part, part[:1].repeat(count, 0)) for part in parts):
        devices = InMemoryDevices.sharing(draw_examples(0), count)
    else:
        devices = InMemoryDevices([draw_examples(device) for device in range(count)])
    solution = quadratic.solution()

    def distance(x: Upper, y: Lower, /) -> float:
        return float(np.linalg.norm(np.asarray(x, float) - solution))

    return Task(
        BilevelProblem(UpperLoss(quadratic.ridge), lower_loss),
        devices,
        jnp.zeros(quadratic.shifts.shape[1]),
        jnp.zeros(quadratic.offsets.shape[1]),
        {"distance": distance},
    )


@dataclass(frozen=True)
class UpperLoss:
    """f, the mean over a batch of `UpperRows`.

    Attributes:
        ridge: r.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 1))
        >>> float(UpperLoss(ridge=2.0)(one[0], 3 * one[0], UpperRows(one, one, one)))
        7.0
    """

    ridge: float

    def __call__(
        self, x: Float[Array, "upper"], y: Float[Array, "lower"], batch: UpperRows, /
    ) -> Float[Array, ""]:
        """Return the mean loss."""
        distances = jnp.sum((y[None] - batch.target) ** 2, axis=1)
        linear = batch.slope @ y + batch.shift @ x
        return jnp.mean(0.5 * distances + linear) + 0.5 * self.ridge * jnp.sum(x**2)


def lower_loss(
    x: Float[Array, "upper"], y: Float[Array, "lower"], batch: LowerRows, /
) -> Float[Array, ""]:
    """Return g, the mean over a batch.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 1))
        >>> rows = LowerRows(2 * one[None], one[None], one)
        >>> float(lower_loss(one[0], 3 * one[0], rows))
        3.0
    """
    quadratic = jnp.einsum("i,bij,j->b", y, batch.matrix, y)
    return jnp.mean(0.5 * quadratic - (batch.coupling @ x + batch.offset) @ y)


@dataclass(frozen=True)
class QuadraticTask:
    """A random quadratic with a known solution; the metric `distance` is ‖x − x*‖.

    Attributes:
        devices: number of devices.
        heterogeneity: difference between devices; 0 for homogeneous devices, as the
            paper assumes.
        examples: number of examples of each loss on each device.
        noise: standard deviation of gradients.
        curvature_noise: standard deviation of second derivatives.
        seed: seed of all numbers.

    Example:
        >>> QuadraticTask(devices=3).task().devices.device_count
        3
    """

    devices: Count = 8
    heterogeneity: Annotated[float, Range(at_least=0.0)] = 0.0
    examples: Count = 100
    noise: Annotated[float, Range(at_least=0.0)] = 0.1
    curvature_noise: Annotated[float, Range(at_least=0.0)] = 0.0
    seed: Seed = 0

    TEMPLATE: ClassVar[str] = template("quadratic_task")

    def __post_init__(self) -> None:
        check_ranges(self)

    def task(self) -> Task:
        """Return the problem with its data."""
        quadratic = random_quadratic(
            devices=self.devices, heterogeneity=self.heterogeneity, seed=self.seed
        )
        return quadratic_task(
            quadratic,
            examples=self.examples,
            noise=self.noise,
            curvature_noise=self.curvature_noise,
            seed=self.seed,
        )
