"""Measurements for `suggest`, from a few batches of each device."""

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.protocol import Phase
from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.power_iteration import curvature_of
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, check_ranges, register

EDGES = 2.0 ** np.arange(-100.0, 100.0, 0.125)
"""Edges of the histogram of curvatures; each is 9 % above the one before."""
LARGEST_REMAINDER = 1e30
"""Upper limit of remainders: they grow without limit if curvature is negative, but a
device's answer must be finite in single precision."""
ROUNDING = 1e-5
"""A curvature above minus this fraction of the largest may be zero up to rounding."""


class Probe(IntEnum):
    """Indices of the phases of `Probes`."""

    CURVATURE = 0
    """Histogram of the curvatures of batches."""
    DESCENT = 1
    """Steps on y with x fixed."""
    SERIES = 2
    """Remainder of ∇y f after several terms of a Neumann series."""
    SMALLEST = 3
    """Curvature of the mean lower loss along the mean remainder."""


class ProbeState(NamedTuple):
    """The point of the measurements, and the latest results.

    Attributes:
        x: upper variable of the measurements.
        y: lower variable of the measurements; a descent moves it.
        rate: rate of steps on y, and the scale of the series.
        counts: share of batches in each bin of the histogram of curvatures.
        device_counts: share of devices in each bin, by the mean over their batches.
        remainders: mean over devices of ‖(I − θH)^q b‖ / ‖b‖ after q = 1, 2, 4, …
            products.
        direction: mean over devices of the direction of the last remainder.
        downward: share of devices with negative curvature along the direction.
        smallest: vᵀH̄v / vᵀv, where v is `direction` and H̄ the mean Hessian.
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
    """Measurements for `suggest`, from batches of the run's batch size.

    Attributes:
        batch_size: examples of each batch.
        batches: batches of each device in each measurement of a curvature.
        products: Hessian products for each batch in a measurement of a curvature.
        doublings: base-2 logarithm of the number of terms of the longest series.
        local_steps: steps on y between two exchanges.

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
        """Return the point without results; devices have no private state."""
        zero = jnp.zeros((), float)
        return ProbeState(
            x,
            y,
            rate=zero,
            counts=jnp.zeros(len(EDGES) + 1, float),
            device_counts=jnp.zeros(len(EDGES) + 1, float),
            remainders=jnp.zeros(self.doublings + 1, float),
            direction=tree.scale(0.0, y),
            downward=zero,
            smallest=zero,
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: probes have no first round."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return one exchange for each `Probe`, in their order."""
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
        batches = _draw_batches(data.lower, key, self.batches, self.batch_size)
        probes = jax.random.split(jax.random.key(0), self.batches)

        def measure(pair: tuple[Batch, RandomKey]) -> Float[Array, ""]:
            product = partial(problem.hessian_product, x, y, pair[0])
            return jnp.asarray(curvature_of(product, y, pair[1], self.products), float)

        level = jax.lax.map(measure, (batches, probes))
        # NaN for curvature that is not finite, so that the engine names the device.
        invalid = 0.0 * jnp.sum(level)
        return jnp.mean(_bin(level), 0) + invalid, _bin(jnp.mean(level)) + invalid

    def _descent(
        self,
        problem: BilevelProblem,
        downlink: tuple[Upper, Lower, Any],
        data: DeviceData,
        key: RandomKey,
    ) -> Lower:
        x, y, rate = downlink
        batches = _draw_batches(data.lower, key, self.local_steps, self.batch_size)

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
        batches = _draw_batches(data.lower, lower_key, longest + 1, self.batch_size)

        # The direction and its length are separate, because powers of a Hessian with
        # negative curvature overflow single precision.
        def multiply(
            remainder: tuple[Lower, Float[Array, ""]], batch: Batch
        ) -> tuple[tuple[Lower, Float[Array, ""]], Float[Array, ""]]:
            direction, size = remainder
            product = problem.hessian_product(x, y, batch, direction)
            power = tree.add_scaled(direction, -scale, product)
            length = _norm(power)
            # If the remainder vanishes, the last direction still shows a curvature.
            direction = jax.tree.map(
                lambda before, after: jnp.where(length == 0, before, after),
                direction,
                tree.scale(1.0 / _unit(length), power),
            )
            size = jnp.minimum(size * length, LARGEST_REMAINDER)
            return (direction, size), size

        first = jax.tree.map(lambda leaf: leaf[:longest], batches)
        start = tree.scale(1.0 / _unit(whole), right), jnp.asarray(whole > 0, float)
        (direction, _), sizes = jax.lax.scan(multiply, start, first)
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
        batches = _draw_batches(data.lower, key, self.batches, self.batch_size)
        size = _norm(direction)
        # The devices' directions may cancel; then all devices use a vector of ones.
        vector = jax.tree.map(
            lambda leaf: jnp.where(size == 0, jnp.ones_like(leaf), leaf),
            tree.scale(1.0 / _unit(size), direction),
        )

        def bend(batch: Batch) -> Float[Array, ""]:
            product = problem.hessian_product(x, y, batch, vector)
            return jnp.asarray(tree.inner(vector, product), float)

        # All devices divide by the same vᵀv, so the mean quotient is that of H̄.
        squared = jnp.asarray(tree.squared_norm(vector), float)
        return jnp.mean(jax.lax.map(bend, batches)) / squared


def quantile(counts: Float[np.ndarray, "classes"], share: float) -> float:
    """Return a quantile of the curvatures in a histogram.

    Example:
        >>> counts = np.zeros(len(EDGES) + 1)
        >>> counts[np.searchsorted(EDGES, [1.5, 3.0])] = 0.5
        >>> 1.5 <= quantile(counts, 0.5) <= 1.5 * 2**0.125
        True
    """
    index = int(np.searchsorted(np.cumsum(counts), share - 1e-9))
    return float(EDGES[min(index, len(EDGES) - 1)])


def largest(counts: Float[np.ndarray, "classes"]) -> float:
    """Return the largest curvature in a histogram.

    Example:
        >>> counts = np.zeros(len(EDGES) + 1)
        >>> counts[np.searchsorted(EDGES, [1.5, 3.0])] = 0.99, 0.01
        >>> 3.0 <= largest(counts) <= 3.0 * 2**0.125
        True
    """
    index = int(np.flatnonzero(counts)[-1])
    return float(EDGES[min(index, len(EDGES) - 1)])


def _bin(level: Float[Array, "*any"]) -> Float[Array, "*any classes"]:
    index = jnp.searchsorted(jnp.asarray(EDGES, float), level)
    return jax.nn.one_hot(index, len(EDGES) + 1, dtype=float)


def _norm(vector: Lower) -> Float[Array, ""]:
    return jnp.sqrt(jnp.asarray(tree.squared_norm(vector), float))


def _unit(size: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(size > 0, size, 1.0)


def _draw_batches(examples: Examples, key: RandomKey, count: int, size: int) -> Batch:
    """Return batches along a leading axis, for a loop over them.

    They are drawn at once: the costs would count a draw inside a loop only once.
    """
    (rows,) = examples.draw(key, count * size, draws=1)
    return jax.tree.map(
        lambda leaf: jnp.reshape(leaf, (count, size, *leaf.shape[1:])), rows
    )
