"""The benchmarks' problem: 784 × 10 softmax regression with penalties e^x of features.

The first axis of the weights is the class, as in `torch.nn.Linear`: with features in
the inner loop, compiled rounds took half the time of the other order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples

FEATURES, CLASSES = 784, 10


class Batch(NamedTuple):
    """Images and their labels."""

    features: Float[Array | np.ndarray, "batch features"]
    labels: Int[Array | np.ndarray, "batch"]


def cross_entropy(
    y: Float[Array, "classes features"], batch: Batch
) -> Float[Array, ""]:
    """Return the mean softmax loss."""
    scores = batch.features @ y.T
    chosen = jnp.take_along_axis(scores, batch.labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - chosen)


def upper_loss(
    x: Float[Array, "features"], y: Float[Array, "classes features"], batch: Batch
) -> Float[Array, ""]:
    """Return the validation loss, without penalty."""
    return cross_entropy(y, batch)


def lower_loss(
    x: Float[Array, "features"], y: Float[Array, "classes features"], batch: Batch
) -> Float[Array, ""]:
    """Return the training loss with ½ Σ_j e^{x_j} ‖y_j‖²."""
    return cross_entropy(y, batch) + 0.5 * jnp.sum(jnp.exp(x)[None, :] * y**2)


def problem() -> BilevelProblem:
    """Return the bilevel problem."""
    return BilevelProblem(upper_loss, lower_loss)


def start() -> tuple[Float[Array, "features"], Float[Array, "classes features"]]:
    """Return the initial x and y."""
    return jnp.full(FEATURES, -4.0), jnp.zeros((CLASSES, FEATURES))


def local_examples(
    generator: np.random.Generator, examples: int, features: int = FEATURES
) -> LocalExamples:
    """Return random images: the time of a step does not depend on their content."""

    def batch() -> Batch:
        pixels = generator.random((examples, features), dtype=np.float32)
        return Batch(pixels, generator.integers(0, CLASSES, examples).astype(np.int32))

    return LocalExamples(upper=batch(), lower=batch())


def devices(count: int, examples: int = 200) -> InMemoryDevices:
    """Return devices of equal size."""
    generator = np.random.default_rng(0)
    return InMemoryDevices([local_examples(generator, examples) for _ in range(count)])
