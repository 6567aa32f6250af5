"""The five oracles with clipping and noise by example."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, UInt32

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.transforms.clip import clip_to
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.noise import standard_normals
from fedbilevel.transforms.private_batches import (
    Marker,
    PrivateData,
    PrivateExamples,
    Sample,
    key_of,
)

ORACLES = {
    "upper_gradients": "upper",
    "lower_gradient": "lower",
    "lower_gradient_x": "lower",
    "hessian_product": "lower",
    "cross_product": "lower",
}
"""The oracles, and the examples that they read."""
NOISE = 1
"""Number in the keys of a batch's noise, to which the number of the call is added."""


def private_problem(
    problem: BilevelProblem, noise: ExampleNoise, data: PrivateData | None
) -> BilevelProblem:
    """Return a problem whose oracles protect single examples.

    Args:
        problem: the problem.
        noise: clip and noise.
        data: data of a device; None for functions of a phase that have no data.
    """

    def oracle(name: str) -> Callable[..., PyTree]:
        if data is None:
            return _Refusal(
                f"ExampleNoise: a phase calls {name} outside its start and step, where "
                "a device has no examples. Call it in start or step."
            )
        examples = getattr(data, ORACLES[name])
        return _PrivateOracle(getattr(problem, name), name, examples, noise)

    losses = (
        _Refusal(
            f"ExampleNoise: the algorithm reads {name}, which has no noise. Use an "
            "algorithm that calls the five derivative oracles only, such as FedBiO."
        )
        for name in ("upper_loss", "lower_loss")
    )
    oracles: dict[str, Any] = {name: oracle(name) for name in ORACLES}
    return BilevelProblem(*losses, **oracles)


class _Refusal:
    """A function that raises an error."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __call__(self, *arguments: Any) -> NoReturn:
        raise ValueError(self._message)


class _PrivateOracle:
    """An oracle that clips the result of each example and adds noise to their sum."""

    def __init__(
        self,
        oracle: Callable[..., PyTree],
        name: str,
        examples: PrivateExamples,
        noise: ExampleNoise,
    ) -> None:
        self._oracle, self._name = oracle, name
        self._examples, self._noise = examples, noise

    def __call__(self, x: Upper, y: Lower, batch: Batch, *vectors: Lower) -> PyTree:
        sample, marker = self._examples.sample(batch)

        # The derivative of the result would be that of the sum without its noise.
        @jax.custom_jvp
        def answer(inputs: PyTree, sample: Sample, noise: PyTree) -> PyTree:
            total = self._sum(inputs, sample, noise[0])
            return _release(marker, inputs, total, sample.seed, noise)

        @answer.defjvp
        def refuse(*arguments: Any) -> NoReturn:
            raise ValueError(
                f"ExampleNoise: the algorithm differentiates {self._name}, and the "
                "derivative would have no noise. Call hessian_product or "
                "cross_product, or write the method without derivatives of oracles."
            )

        noise = self._noise.clip, self._noise.multiplier
        return answer((x, y, *vectors), sample, noise)

    def _sum(self, inputs: PyTree, sample: Sample, clip: Scalar) -> PyTree:
        x, y, *vectors = inputs

        def single(row: PyTree) -> PyTree:
            batch_of_one = jax.tree.map(lambda leaf: leaf[None], row)
            result = tree.at_least_single(self._oracle(x, y, batch_of_one, *vectors))
            return clip_to(tree.zero_unless_finite(result), jnp.asarray(clip))

        terms = jax.vmap(single)(sample.rows)

        def add(leaf: Array) -> Array:
            used = jnp.arange(len(leaf)) < sample.number
            return jnp.sum(
                jnp.where(used.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0), axis=0
            )

        return jax.tree.map(add, terms)


def _release(
    marker: Marker,
    inputs: PyTree,
    total: PyTree,
    seed: UInt32[Array, "8"],
    noise: tuple[Scalar, Scalar],
) -> PyTree:
    """Return the noised mean of a batch, by a function with the name of the marker.

    A batch may answer several calls. Equal noise in two of them would cancel in their
    difference, so each call has a number. `engines.example_releases` requires that the
    program runs each call once, since a call that is traced once may run many times.
    """
    size = marker.batch.batch_size

    # The first argument shows whether a `vmap` repeats the call with other inputs.
    def release(
        probe: Bool[Array, ""],
        seed: UInt32[Array, "8"],
        total: PyTree,
        noise: tuple[Scalar, Scalar],
    ) -> PyTree:
        clip, multiplier = noise
        normals = standard_normals(total, key_of(seed, NOISE + marker.call))
        return jax.tree.map(
            lambda leaf, numbers: (
                (leaf + jnp.asarray(multiplier * clip, leaf.dtype) * numbers) / size
            ),
            total,
            normals,
        )

    release.__name__ = str(marker)
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(inputs)]
    return jax.jit(release)(jnp.stack(finite).all(), seed, total, noise)
