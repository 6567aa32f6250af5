"""Batches that algorithms can pass to oracles, but not read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.mathematics.chacha import KEY_WORDS, key_of_words
from fedbilevel.mathematics.problem import Batch
from fedbilevel.privacy.poisson import PoissonTable, poisson_table

PURPOSE = 0x7A3D5C00
"""Number in all keys of private batches, since an algorithm may derive other keys."""
SOURCES, NUMBER = 0, 1
"""Numbers in the keys of a batch's examples and of their number."""
PREFIX = "fedbilevel_"
"""Start of the names of markers."""
LEAST_PIECE = 16
"""Batch size from which examples are drawn in pieces of this size. Below, they are
drawn at once: many small gathers compile slowly."""


class Place(IntEnum):
    """The function of a phase that draws a batch."""

    START = 0
    STEP = 1


class Level(IntEnum):
    """The set of examples that a batch is drawn from."""

    UPPER = 0
    LOWER = 1


class BatchName(NamedTuple):
    """The position of a draw in the program of a phase.

    Attributes:
        place: function that draws the batch.
        level: set of examples.
        serial: number of the draw in the function.
        batch_size: mean number of examples.
    """

    place: Place
    level: Level
    serial: int
    batch_size: int


class Marker(NamedTuple):
    """The name of a compiled function, by which accounting finds a draw or a call.

    Attributes:
        batch: batch that is drawn or read.
        call: number of the oracle's call on the batch; 0 for the draw itself.

    Example:
        >>> batch = BatchName(Place.STEP, Level.LOWER, serial=2, batch_size=16)
        >>> str(Marker(batch, call=3))
        'fedbilevel_1_1_2_16_3'
        >>> Marker.of("fedbilevel_1_1_2_16_3").batch == batch
        True
        >>> Marker.of("cosine") is None
        True
    """

    batch: BatchName
    call: int

    @classmethod
    def of(cls, name: str) -> "Marker | None":
        """Return the marker of a function's name; None if it is no marker."""
        if not name.startswith(PREFIX):
            return None
        place, level, *rest = map(int, name.removeprefix(PREFIX).split("_"))
        serial, batch_size, call = rest
        return cls(BatchName(Place(place), Level(level), serial, batch_size), call)

    def __str__(self) -> str:
        return PREFIX + "_".join(str(int(part)) for part in (*self.batch, self.call))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrivateBatch:
    """A batch without its examples, which only the oracles can look up.

    It has no array, so that an algorithm cannot keep the secret of the noise for a
    later step, where equal noise would be added to another answer.

    Attributes:
        name: position of the draw.
        origin: identity of the start or step that has drawn it.
    """

    name: BatchName = field(metadata={"static": True})
    origin: object = field(metadata={"static": True})


class Sample(NamedTuple):
    """The examples of a private batch.

    Attributes:
        rows: as many examples as the largest batch has.
        number: number of examples that belong to the batch, the first ones.
        seed: secret from which the examples and all noise on them follow.
    """

    rows: Batch
    number: Int[Array, ""]
    seed: UInt32[Array, "8"]


class PrivateExamples:
    """Examples that give out private batches.

    Args:
        examples: examples of the device.
        place: function of the phase that draws.
        level: set of examples.
        secret: key of the engine for this start or step. Batches and noise follow from
            it, whatever key an algorithm draws with: an algorithm may use one key in
            several steps, or a constant.
    """

    def __init__(
        self, examples: Examples, place: Place, level: Level, secret: RandomKey
    ) -> None:
        self._examples, self._place, self._level = examples, place, level
        self._secret, self._origin = secret, object()
        self._samples: dict[PrivateBatch, Sample] = {}
        self._calls: dict[PrivateBatch, int] = {}

    @property
    def size(self) -> Int[Array | np.ndarray, "*devices"]:
        """The number of examples, which is public."""
        return self._examples.size

    def draw(
        self, key: RandomKey, batch_size: int, draws: int
    ) -> tuple[PrivateBatch, ...]:
        """Return independent batches, each of a Poisson number of examples."""
        return tuple(self._draw(key, batch_size) for _ in range(draws))

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Raise an error: a mean over all examples has no bound by example.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "ExampleNoise: the algorithm calls Examples.mean, which reads all examples "
            "without noise. Use an algorithm that draws batches, such as FedBiO."
        )

    def sample(self, batch: Batch) -> tuple[Sample, Marker]:
        """Return the examples of a batch, and the marker of the next call on it.

        Raises:
            ValueError: if the batch is not a private one, or another start or step has
                drawn it, also an earlier one.
        """
        if not isinstance(batch, PrivateBatch):
            raise ValueError(
                f"ExampleNoise: an oracle got a batch of type {type(batch).__name__}. "
                "Pass the batches of Examples.draw unchanged."
            )
        if batch not in self._samples:
            level = self._level.name.lower()
            raise ValueError(
                f"ExampleNoise: an oracle of the {level} loss got a batch that is not "
                f"of the {level} examples, or from another start or step. Pass a batch "
                "that the same start or step draws from the examples of this loss."
            )
        self._calls[batch] += 1
        return self._samples[batch], Marker(batch.name, self._calls[batch])

    def _draw(self, key: RandomKey, batch_size: int) -> PrivateBatch:
        serial = len(self._samples)
        name = BatchName(self._place, self._level, serial, batch_size)
        # A site's rules check the sizes of draws: this one, of no batch, shows the mean
        # number of examples, before there is a table for it.
        self._examples.draw(key, batch_size, draws=0)
        table = poisson_table(batch_size)
        own = jax.random.fold_in(self._secret, PURPOSE + 2 * self._place + self._level)
        own = jax.random.fold_in(own, serial)
        # The algorithm's key shows a `vmap` over it, which is refused.
        own = jax.random.fold_in(own, jax.random.bits(key, (), jnp.uint32))
        seed = _marked(Marker(name, 0), jax.random.bits(own, (KEY_WORDS,), jnp.uint32))
        size = batch_size if batch_size >= LEAST_PIECE else table.capacity
        pieces = self._examples.draw(
            key_of(seed, SOURCES), size, draws=-(-table.capacity // size)
        )
        rows = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves)[: table.capacity], *pieces
        )
        number = poisson_number(table, key_of(seed, NUMBER))
        batch = PrivateBatch(name, self._origin)
        self._samples[batch], self._calls[batch] = Sample(rows, number, seed), 0
        return batch


class PrivateData:
    """The data of one device, as a private algorithm sees it.

    Args:
        data: data of the device.
        place: function of the phase that draws.
        secret: key of the engine for this start or step.
    """

    def __init__(self, data: DeviceData, place: Place, secret: RandomKey) -> None:
        self.upper = PrivateExamples(data.upper, place, Level.UPPER, secret)
        self.lower = PrivateExamples(data.lower, place, Level.LOWER, secret)


def key_of(seed: UInt32[Array, "8"], purpose: int | UInt32[Array, ""]) -> RandomKey:
    """Return a random key that follows from a seed.

    Example:
        >>> seed = jnp.arange(8, dtype=jnp.uint32)
        >>> bool(jnp.any(key_of(seed, 0) == key_of(seed, 1)))
        False
    """
    return jax.random.fold_in(key_of_words(seed), purpose)


def poisson_number(table: PoissonTable, key: RandomKey) -> Int[Array, ""]:
    """Return a number from a Poisson distribution.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 1000)
        >>> numbers = jax.vmap(lambda key: poisson_number(poisson_table(16), key))(keys)
        >>> 15 < float(numbers.mean()) < 17 and 13 < float(numbers.var()) < 19
        True
    """
    high, low = jax.random.bits(key, (2,), jnp.uint32)
    reached = (table.high < high) | ((table.high == high) & (table.low <= low))
    return jnp.sum(reached)


def _marked(marker: Marker, value: Array) -> Array:
    """Return a value through a compiled function with the name of a marker."""

    def same(value: Array) -> Array:
        return value

    same.__name__ = str(marker)
    result: Array = jax.jit(same)(value)
    return result
