"""A quadratic bilevel problem, its derivatives by hand and its exact solution.

An example of the upper set is (target, shift): f = ½‖y − target‖² + shiftᵀx + ½c‖x‖².
An example of the lower set is (matrix, coupling, offset):
g = ½ yᵀ matrix y − yᵀ(coupling x + offset).
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples

RIDGE = 0.3
X_SIZE, Y_SIZE = 3, 4


class Upper(NamedTuple):
    target: np.ndarray
    shift: np.ndarray


class Lower(NamedTuple):
    matrix: np.ndarray
    coupling: np.ndarray
    offset: np.ndarray


def upper_loss(x, y, batch):
    distances = y[None] - batch.target
    return (
        0.5 * jnp.mean(jnp.sum(distances**2, axis=1))
        + jnp.mean(batch.shift, axis=0) @ x
        + 0.5 * RIDGE * jnp.sum(x**2)
    )


def lower_loss(x, y, batch):
    quadratic = 0.5 * jnp.einsum("i,bij,j->b", y, batch.matrix, y)
    linear = (batch.coupling @ x + batch.offset) @ y
    return jnp.mean(quadratic - linear)


def problem() -> BilevelProblem:
    return BilevelProblem(upper_loss, lower_loss)


def examples(generator: np.random.Generator, count: int, noise: float) -> LocalExamples:
    """Return examples scattered about a quadratic that is the same for every call."""
    base = np.random.default_rng(0)
    root = base.normal(size=(Y_SIZE, Y_SIZE))
    matrix = np.eye(Y_SIZE) + 0.2 * root @ root.T
    coupling = base.normal(size=(Y_SIZE, X_SIZE))
    offset, target = base.normal(size=(2, Y_SIZE))
    shift = base.normal(size=X_SIZE)

    def scatter(mean: np.ndarray) -> np.ndarray:
        return mean + noise * generator.normal(size=(count, *mean.shape))

    roots = noise * generator.normal(size=(count, Y_SIZE, Y_SIZE))
    return LocalExamples(
        upper=Upper(scatter(target), scatter(shift)),
        lower=Lower(
            matrix + roots @ roots.transpose(0, 2, 1),
            scatter(coupling),
            scatter(offset),
        ),
    )


def devices(count: int, per_device: int, noise: float) -> list[LocalExamples]:
    generator = np.random.default_rng(1)
    return [examples(generator, per_device, noise) for _ in range(count)]


def exact_device() -> InMemoryDevices:
    """Return a device with one noiseless example: its oracles are deterministic."""
    return InMemoryDevices(devices(1, 1, 0.0))


class Mean(NamedTuple):
    """The expectation of a set of examples, in closed form."""

    matrix: np.ndarray
    coupling: np.ndarray
    offset: np.ndarray
    target: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, examples: list[LocalExamples]) -> "Mean":
        lower = [
            np.mean([device.lower[i].mean(0) for device in examples], axis=0)
            for i in range(3)
        ]
        upper = [
            np.mean([device.upper[i].mean(0) for device in examples], axis=0)
            for i in range(2)
        ]
        return cls(*lower, *upper)

    def lower_solution(self, x: np.ndarray) -> np.ndarray:
        right = self.coupling @ x + self.offset
        return np.asarray(np.linalg.solve(self.matrix, right))

    def hypergradient(self, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        y = self.lower_solution(x) if y is None else y
        inverse_product = np.linalg.solve(self.matrix, y - self.target)
        return np.asarray(self.shift + RIDGE * x + self.coupling.T @ inverse_product)

    def solution(self) -> np.ndarray:
        inverse = np.linalg.inv(self.matrix)
        map_x = inverse @ self.coupling
        left = RIDGE * np.eye(X_SIZE) + map_x.T @ map_x
        right = -self.shift - map_x.T @ (inverse @ self.offset - self.target)
        return np.asarray(np.linalg.solve(left, right))
