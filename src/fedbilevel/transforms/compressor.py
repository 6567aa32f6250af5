"""Compressors: pure functions between an update and its code, and chains of two."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import register


@runtime_checkable
class Compressor(Protocol):
    """A map from an update to a smaller code and back.

    An update that is not finite decodes to one that is not finite, so that the engine
    excludes it.
    """

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the code that is sent for an update: arrays only."""

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the update that the receiver reads from a code.

        Args:
            code: code of an update.
            like: arrays or `jax.ShapeDtypeStruct`s with the update's shapes and dtypes.
        """


class ChainCode(NamedTuple):
    """The code of a chain.

    Attributes:
        numbers: code of the first code's floating-point arrays.
        others: the first code's other arrays: indices and seeds.
    """

    numbers: PyTree
    others: tuple[Array, ...]


@register
@dataclass(frozen=True)
class Chain:
    """Two compressors: the second compresses the numbers in the first one's code.

    Indices and seeds in the first code are sent unchanged. Chains can be nested.

    Attributes:
        first: compressor whose code has the numbers, such as `TopK`.
        second: compressor of these numbers, such as `Quantise`.

    Example:
        >>> from fedbilevel.mathematics import tree
        >>> from fedbilevel.transforms.quantise import Quantise
        >>> from fedbilevel.transforms.sparsify import TopK
        >>> chain = Chain(TopK(0.1), Quantise(bits=8))
        >>> code = chain.encode(jnp.ones(10_000), jax.random.key(0))
        >>> tree.number_of_bytes(code)  # 1,000 levels, 4 scales and 1,000 indices
        3016
    """

    first: Any
    second: Any

    def __post_init__(self) -> None:
        for compressor in (self.first, self.second):
            if not isinstance(compressor, Compressor):
                raise TypeError(
                    f"Chain: {compressor!r} has no encode and decode. Give compressors "
                    "such as TopK(0.1) and Quantise(bits=8)."
                )
        if sends_integers(self.first):
            raise TypeError(
                f"Chain: {type(self.first).__name__} comes first and sends integers, "
                f"which {type(self.second).__name__} cannot compress. Pass Quantise "
                "last: Chain(TopK(0.1), Quantise(bits=8))."
            )

    @property
    def sends_integers(self) -> bool:
        """True if the numbers of an update are sent as integers."""
        return sends_integers(self.second)

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the code of the numbers in the first code, and its other arrays."""
        first_key, second_key = jax.random.split(key)
        numbers, others = _split(self.first.encode(update, first_key))
        return ChainCode(self.second.encode(numbers, second_key), others)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the update that the first compressor decodes."""
        form = jax.eval_shape(self.first.encode, like, jax.random.key(0))
        leaves, structure = jax.tree.flatten(form)
        numbers = iter(self.second.decode(code.numbers, _split(form)[0]))
        others = iter(code.others)
        first_code = [next(numbers if is_floating(a) else others) for a in leaves]
        return self.first.decode(jax.tree.unflatten(structure, first_code), like)


def sends_integers(compressor: Any) -> bool:
    """Return whether a compressor sends an update's numbers as integers.

    Example:
        >>> from fedbilevel.transforms.quantise import Quantise
        >>> sends_integers(Quantise())
        True
    """
    return bool(getattr(compressor, "sends_integers", False))


def floating_leaves(owner: str, update: PyTree) -> tuple[list[Array], Any]:
    """Return the arrays of an update and its structure.

    Args:
        owner: name of the compressor, for the message.
        update: tree of floating-point arrays.

    Raises:
        TypeError: if an array has another dtype.

    Example:
        >>> floating_leaves("Quantise", (jnp.arange(3),))
        Traceback (most recent call last):
        ...
        TypeError: Quantise: an array has dtype int32, expected floating point.
        Compress before any transform that returns integers, and quantise last.
    """
    leaves, structure = jax.tree.flatten(update)
    for leaf in leaves:
        if not is_floating(leaf):
            raise TypeError(
                f"{owner}: an array has dtype {jnp.result_type(leaf)}, expected "
                "floating point. Compress before any transform that returns integers, "
                "and quantise last."
            )
    return [jnp.asarray(leaf) for leaf in leaves], structure


def is_floating(leaf: Any) -> bool:
    """Return whether an array has a floating-point dtype.

    Example:
        >>> is_floating(jnp.ones(2)), is_floating(jnp.arange(2))
        (True, False)
    """
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _split(code: PyTree) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    leaves = jax.tree.leaves(code)
    numbers = tuple(leaf for leaf in leaves if is_floating(leaf))
    return numbers, tuple(leaf for leaf in leaves if not is_floating(leaf))
