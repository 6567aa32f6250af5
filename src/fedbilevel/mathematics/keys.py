"""Random keys of JAX, and the same keys computed by NumPy.

Problems of PyTorch draw the samples that JAX would draw: `HostKey` computes the hash
function Threefry-2x32 of JAX's default generator, and derives keys and integers in the
same way. So both have one trajectory, and one of them can be tested against the other.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from fedbilevel.mathematics import arrays

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
WORD = 0xFFFFFFFF
"""The bits of a word of 32 bits."""


@dataclass(frozen=True)
class HostKey:
    """A random key whose bits are in the memory of Python, or keys of many devices.

    Attributes:
        words: the two words of each key, along the last axis.

    References:
        Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3,
        doi 10.1145/2063384.2063405.

    Example:
        >>> key = HostKey.of(5)
        >>> bool(np.all(key.words == jax.random.key_data(jax.random.key(5))))
        True
    """

    words: UInt32[np.ndarray, "*devices 2"]

    @classmethod
    def of(cls, seed: int) -> "HostKey":
        """Return the key of a seed."""
        return cls(np.array([seed >> 32, seed & WORD], np.uint32))

    def fold_in(
        self, numbers: Int[np.ndarray, "*devices"] | np.integer | int
    ) -> "HostKey":
        """Return the key derived with a number, or with a number for each device."""
        if self.words.ndim == 1 and np.ndim(numbers) == 0:
            low, high = self.words.tolist()
            words = _hash_once(low, high, 0, int(numbers) & WORD)
            return HostKey(np.array(words, np.uint32))
        second = np.asarray(numbers).astype(np.uint32)
        first = np.zeros_like(second)
        return HostKey(np.stack(_hash(self.words, first, second), -1))

    def split(self, count: int = 2) -> tuple["HostKey", ...]:
        """Return several keys."""
        return tuple(map(self.fold_in, range(count)))

    def integers(
        self,
        shape: tuple[int, ...],
        below: Int[np.ndarray, "*devices"] | np.integer | int,
    ) -> Int[np.ndarray, "*devices_and_shape"]:
        """Return integers from 0 to below − 1, as `jax.random.randint` does.

        Args:
            shape: shape of the integers of one key.
            below: bound, or a bound for each device.
        """
        count = int(np.prod(shape))
        pair = HostKey(np.stack([key.words for key in self.split()]))
        high, low = pair._bits(count)
        span = np.asarray(below).astype(np.uint32)[..., None]
        # 2^32 modulo the span, in the arithmetic of 32 bits.
        unit = np.uint32(2**16) % span
        with np.errstate(over="ignore"):
            numbers = ((high % span) * (unit * unit % span) + low % span) % span
        return np.reshape(numbers.astype(np.int64), numbers.shape[:-1] + shape)

    def normals(
        self, shape: tuple[int, ...], double: bool = True
    ) -> Float[np.ndarray, "*shape"]:
        """Return standard normal numbers, as `jax.random.normal` does.

        Args:
            shape: shape of the result.
            double: whether numbers are float64 and not float32, whose bits differ.
        """
        # SciPy is imported when it is needed: every run imports this module.
        from scipy.special import erfinv

        count = int(np.prod(shape))
        if double:
            counts = np.arange(count, dtype=np.uint32)
            high, low = _hash(self.words, np.zeros_like(counts), counts)
            bits = (high.astype(np.uint64) << np.uint64(32)) | low
            mantissa = (bits >> np.uint64(12)) | np.uint64(0x3FF0000000000000)
            unit = mantissa.view(np.float64) - 1.0
        else:
            mantissa = (self._bits(count) >> np.uint32(9)) | np.uint32(0x3F800000)
            unit = mantissa.view(np.float32) - np.float32(1.0)
        least = np.nextafter(unit.dtype.type(-1.0), unit.dtype.type(0.0))
        uniform = np.maximum(least, unit * (1 - least) + least)
        result: Float[np.ndarray, "*shape"] = unit.dtype.type(2**0.5) * erfinv(uniform)
        return result.reshape(shape)

    def _bits(self, count: int) -> UInt32[np.ndarray, "*devices count"]:
        counts = np.arange(count, dtype=np.uint32)
        first, second = _hash(self.words[..., None, :], np.zeros_like(counts), counts)
        result: UInt32[np.ndarray, "*devices count"] = first ^ second
        return result


if TYPE_CHECKING:
    RandomKey: TypeAlias = Key[Array, ""]
else:
    RandomKey = Key[Array, ""] | HostKey
"""The key of a device or of the server. For type checkers it is JAX's, since algorithms
pass keys on to the functions of this module and to examples."""


def fold_in(key: Any, number: Any) -> RandomKey:
    """Return a key that is derived with a number.

    Example:
        >>> derived = fold_in(HostKey.of(0), 7)
        >>> bool(np.all(derived.words == jax.random.key_data(fold_in(key_of(0), 7))))
        True
    """
    if isinstance(key, HostKey):
        key = key.fold_in(int(number) if arrays.is_tensor(number) else number)
    else:
        key = jax.random.fold_in(key, number)
    result: RandomKey = key
    return result


def split(key: Any, count: int = 2) -> Any:
    """Return several keys.

    Example:
        >>> first, _ = split(HostKey.of(3))
        >>> bool(np.all(first.words == jax.random.key_data(split(key_of(3))[0])))
        True
    """
    return (
        key.split(count) if isinstance(key, HostKey) else jax.random.split(key, count)
    )


def integer(key: Any, below: int) -> Int[Array, ""] | int:
    """Return an integer from 0 to below − 1.

    Example:
        >>> integer(HostKey.of(2), 1000) == int(integer(key_of(2), 1000))
        True
    """
    if isinstance(key, HostKey):
        return int(key.integers((), below))
    # 64-bit integers would need other bits of the key.
    return jax.random.randint(key, (), 0, below, "int32")


def normal(key: Any, like: Any) -> Any:
    """Return standard normal numbers with the form of an array.

    Example:
        >>> normal(key_of(0), like=np.zeros((2, 3))).shape
        (2, 3)
    """
    if isinstance(key, HostKey):
        double = like.dtype.itemsize == 8
        return arrays.from_numpy(key.normals(tuple(like.shape), double), like)
    return jax.random.normal(key, np.shape(like), jnp.result_type(like))


def key_of(seed: int, like: Any = None) -> RandomKey:
    """Return the key of a seed: JAX's, or the type of another key.

    Example:
        >>> key_of(0).shape
        ()
    """
    on_host = isinstance(like, HostKey)
    key: RandomKey = HostKey.of(seed) if on_host else jax.random.key(seed)  # type: ignore[assignment]
    return key


def _hash_once(low: int, high: int, first: int, second: int) -> tuple[int, int]:
    """Return `_hash` of single numbers, in a tenth of the time of NumPy."""
    schedule = low, high, low ^ high ^ PARITY
    a, b = first + low & WORD, second + high & WORD
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b & WORD
            b = a ^ (b << rotation & WORD | b >> 32 - rotation)
        a = a + schedule[(group + 1) % 3] & WORD
        b = b + schedule[(group + 2) % 3] + group + 1 & WORD
    return a, b


def _hash(
    words: UInt32[np.ndarray, "*keys 2"],
    first: UInt32[np.ndarray, "*counts"] | np.uint32,
    second: UInt32[np.ndarray, "*counts"] | np.uint32,
) -> tuple[Any, Any]:
    """Return Threefry-2x32 with 20 rounds of two counters, for each key."""
    low, high = words[..., 0], words[..., 1]
    schedule = low, high, low ^ high ^ np.uint32(PARITY)
    with np.errstate(over="ignore"):
        a, b = first + schedule[0], second + schedule[1]
        for group in range(5):
            for rotation in ROTATIONS[group % 2]:
                a = a + b
                b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
                b = a ^ b
            a = a + schedule[(group + 1) % 3]
            b = b + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return a, b
