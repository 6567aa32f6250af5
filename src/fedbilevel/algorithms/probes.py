"""The questions that a suggestion of settings asks, answered from a few batches."""

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.protocol import Phase
from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.power_iteration import curvature_of
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, check_ranges, register

EDGES = 2.0 ** np.arange(-100.0, 100.0, 0.125)
"""Of the classes that curvatures are counted in, each a twelfth above the last."""
LARGEST_REMAINDER = 1e30
"""Remainders are cut off here: they grow without end where curvature is negative, and
the answer of a device has to be finite in single precision."""
ROUNDING = 1e-5
"""Of the largest curvature: a curvature above minus this part of it may be zero."""


class Probe(IntEnum):
    """The phases of probes, by their place.

    Example:
        >>> Probe.SERIES.value
        2
    """

    CURVATURE = 0
    """How many batches are how curved."""
    DESCENT = 1
    """Steps on y with x fixed."""
    SERIES = 2
    """What is left of ∇y f after so many terms of a Neumann series."""
    SMALLEST = 3
    """How curved the mean lower loss is along what is left, the same for all."""


class ProbeState(NamedTuple):
    """What the server asks about, and the latest answer to each question.

    Attributes:
        x: where probes are made.
        y: where probes are made; a descent moves it.
        rate: of steps on y, and the scale of the series.
        counts: the share of batches in each class of curvature.
        device_counts: the share of devices in each class, each by the mean of its
            batches.
        remainders: ‖(I − θH)^q b‖ / ‖b‖ after 1, 2, 4, … products, the mean over
            devices.
        direction: of what is left after the last of them, the mean over devices.
        downward: the share of devices on which curvature is negative along it.
        smallest: vᵀH̄v / vᵀv, where v is `direction` and H̄ the mean Hessian.

    Example:
        >>> ProbeState(1.0, 2.0, 0.1, (), (), (), 0.0, 0.0, 0.0).rate
        0.1
    """

    x: Upper
    y: Lower
    rate: Any
    counts: Float[Array, "classes"]
    device_counts: Float[Array, "classes"]
    remainders: Float[Array, "lengths"]
    direction: Lower
    downward: Float[Array, ""]
    smallest: Float[Array, ""]


@register
@dataclass(frozen=True)
class Probes:
    """Asks devices what a suggestion needs, from batches of the size of the run's.

    Attributes:
        batch_size: examples of each batch.
        batches: of each device, in each measurement of a curvature.
        products: of each device, in its measurement of a curvature.
        doublings: the longest series has 2 to this power terms.
        local_steps: on y, between two exchanges.

    Example:
        >>> from fedbilevel import BilevelProblem
        >>> loss = lambda x, y, batch: y**2
        >>> len(Probes().phases(BilevelProblem(loss, loss))) == len(Probe)
        True
    """

    batch_size: Count = 16
    batches: Count = 8
    products: Count = 10
    doublings: Count = 6
    local_steps: Count = 5

    def __post_init__(self) -> None:
        check_ranges(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[ProbeState, tuple[()]]:
        """Return the point, nothing known about it; devices keep nothing."""
        none = jnp.zeros((), float)
        return ProbeState(
            x,
            y,
            rate=none,
            counts=jnp.zeros(len(EDGES) + 1, float),
            device_counts=jnp.zeros(len(EDGES) + 1, float),
            remainders=jnp.zeros(self.doublings + 1, float),
            direction=tree.scale(0.0, y),
            downward=none,
            smallest=none,
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return nothing: probes have no first round."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return an exchange for each `Probe`, in their order."""
        return (
            queries.ask(
                "curvature",
                lambda server: (server.x, server.y),
                partial(self._curvature, problem),
                lambda server, mean, key: server._replace(
                    counts=mean[0], device_counts=mean[1]
                ),
            ),
            queries.ask(
                "descent",
                lambda server: (server.x, server.y, server.rate),
                partial(self._descent, problem),
                lambda server, mean, key: server._replace(y=mean),
            ),
            queries.ask(
                "series",
                lambda server: (server.x, server.y, server.rate),
                partial(self._series, problem),
                lambda server, mean, key: server._replace(
                    remainders=mean[0], direction=mean[1], downward=mean[2]
                ),
            ),
            queries.ask(
                "smallest curvature",
                lambda server: (server.x, server.y, server.direction),
                partial(self._smallest, problem),
                lambda server, mean, key: server._replace(smallest=mean),
            ),
        )

    def _curvature(
        self,
        problem: BilevelProblem,
        downlink: tuple[Upper, Lower],
        data: DeviceData,
        key: RandomKey,
    ) -> tuple[Float[Array, "classes"], Float[Array, "classes"]]:
        x, y = downlink
        batches = _drawn(data.lower, key, self.batches, self.batch_size)
        probes = jax.random.split(jax.random.key(0), self.batches)

        def measured(pair: tuple[Batch, RandomKey]) -> Float[Array, ""]:
            product = partial(problem.hessian_product, x, y, pair[0])
            found = curvature_of(product, y, pair[1], self.products)
            return jnp.asarray(found, float)

        level = jax.lax.map(measured, (batches, probes))
        # What is not finite stays so, and its device is named.
        spoilt = 0.0 * jnp.sum(level)
        return jnp.mean(_class(level), 0) + spoilt, _class(jnp.mean(level)) + spoilt

    def _descent(
        self,
        problem: BilevelProblem,
        downlink: tuple[Upper, Lower, Any],
        data: DeviceData,
        key: RandomKey,
    ) -> Lower:
        x, y, rate = downlink
        batches = _drawn(data.lower, key, self.local_steps, self.batch_size)

        def step(y: Lower, batch: Batch) -> tuple[Lower, None]:
            return tree.add_scaled(y, -rate, problem.lower_gradient(x, y, batch)), None

        y, _ = jax.lax.scan(step, y, batches)
        return y

    def _series(
        self,
        problem: BilevelProblem,
        downlink: tuple[Upper, Lower, Any],
        data: DeviceData,
        key: RandomKey,
    ) -> tuple[Float[Array, "lengths"], Lower, Float[Array, ""]]:
        x, y, scale = downlink
        upper_key, lower_key = jax.random.split(key)
        (upper,) = data.upper.draw(upper_key, self.batch_size, draws=1)
        _, right = problem.upper_gradients(x, y, upper)
        whole = _norm(right)

        longest = 2**self.doublings
        batches = _drawn(data.lower, lower_key, longest + 1, self.batch_size)

        # The direction and its length apart: powers of a Hessian with negative
        # curvature exceed single precision.
        def one_more(
            left: tuple[Lower, Float[Array, ""]], batch: Batch
        ) -> tuple[tuple[Lower, Float[Array, ""]], Float[Array, ""]]:
            direction, size = left
            product = problem.hessian_product(x, y, batch, direction)
            moved = tree.add_scaled(direction, -scale, product)
            length = _norm(moved)
            # Where nothing is left, what was left last still shows a curvature.
            direction = jax.tree.map(
                lambda before, after: jnp.where(length == 0, before, after),
                direction,
                tree.scale(1.0 / _unit(length), moved),
            )
            size = jnp.minimum(size * length, LARGEST_REMAINDER)
            return (direction, size), size

        first = jax.tree.map(lambda leaf: leaf[:longest], batches)
        start = tree.scale(1.0 / _unit(whole), right), jnp.asarray(whole > 0, float)
        (direction, _), sizes = jax.lax.scan(one_more, start, first)
        last = jax.tree.map(lambda leaf: leaf[longest], batches)
        bend = tree.inner(direction, problem.hessian_product(x, y, last, direction))
        downward = jnp.asarray(scale * jnp.asarray(bend, float) < -ROUNDING, float)
        return sizes[2 ** np.arange(self.doublings + 1) - 1], direction, downward

    def _smallest(
        self,
        problem: BilevelProblem,
        downlink: tuple[Upper, Lower, Lower],
        data: DeviceData,
        key: RandomKey,
    ) -> Float[Array, ""]:
        x, y, direction = downlink
        batches = _drawn(data.lower, key, self.batches, self.batch_size)
        size = _norm(direction)
        # Directions of devices may cancel. Any vector will do, if all have the same.
        vector = jax.tree.map(
            lambda leaf: jnp.where(size == 0, jnp.ones_like(leaf), leaf),
            tree.scale(1.0 / _unit(size), direction),
        )

        def bend(batch: Batch) -> Float[Array, ""]:
            product = problem.hessian_product(x, y, batch, vector)
            return jnp.asarray(tree.inner(vector, product), float)

        # All devices divide by the same vᵀv, so the mean of quotients is that of H̄.
        squared = jnp.asarray(tree.squared_norm(vector), float)
        return jnp.mean(jax.lax.map(bend, batches)) / squared


def quantile(counts: Float[np.ndarray, "classes"], share: float) -> float:
    """Return the curvature that so large a share of batches does not exceed.

    Example:
        >>> counts = np.zeros(len(EDGES) + 1)
        >>> counts[np.searchsorted(EDGES, [1.5, 3.0])] = 0.5
        >>> 1.5 <= quantile(counts, 0.5) <= 1.5 * 2**0.125
        True
    """
    place = int(np.searchsorted(np.cumsum(counts), share - 1e-9))
    return float(EDGES[min(place, len(EDGES) - 1)])


def largest(counts: Float[np.ndarray, "classes"]) -> float:
    """Return the curvature that nothing counted exceeds.

    Example:
        >>> counts = np.zeros(len(EDGES) + 1)
        >>> counts[np.searchsorted(EDGES, [1.5, 3.0])] = 0.99, 0.01
        >>> 3.0 <= largest(counts) <= 3.0 * 2**0.125
        True
    """
    place = int(np.flatnonzero(counts)[-1])
    return float(EDGES[min(place, len(EDGES) - 1)])


def _class(level: Float[Array, "*any"]) -> Float[Array, "*any classes"]:
    place = jnp.searchsorted(jnp.asarray(EDGES, float), level)
    return jax.nn.one_hot(place, len(EDGES) + 1, dtype=float)


def _norm(vector: Lower) -> Float[Array, ""]:
    return jnp.sqrt(jnp.asarray(tree.squared_norm(vector), float))


def _unit(size: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(size > 0, size, 1.0)


def _drawn(examples: Examples, key: RandomKey, count: int, size: int) -> Batch:
    """Return batches along a leading axis, for a loop over them.

    They are drawn at once: a draw inside a loop would be counted as one.
    """
    (together,) = examples.draw(key, count * size, draws=1)
    return jax.tree.map(
        lambda leaf: jnp.reshape(leaf, (count, size, *leaf.shape[1:])), together
    )
