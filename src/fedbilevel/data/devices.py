"""Devices' data: arrays in memory, or a loader called with the device number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.data.repeated_examples import (
    Copies,
    Holder,
    find_equal_rows,
    find_same_memory,
    rows_in_memory,
    varied_arrays,
)
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.mathematics.problem import Batch


@runtime_checkable
class Devices(Protocol):
    """A federation's data, by device number 0 … device_count − 1."""

    @property
    def device_count(self) -> int:
        """The number of enrolled devices, K."""

    @property
    def in_memory(self) -> bool:
        """True if a cohort needs no loading."""

    def cohort(self, devices: Int[np.ndarray, "cohort"]) -> StoredData:
        """Return the data of some devices, offsets and sizes along a leading axis."""


@runtime_checkable
class SizedDevices(Protocol):
    """Devices whose numbers of examples are known before the run."""

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""


class LocalExamples(NamedTuple):
    """The examples of one device, as plain arrays.

    A device may have examples of one loss only. The mean of the other loss is then one
    over the other devices.

    Attributes:
        upper: tree of arrays with one row per example of the upper loss, or None.
        lower: tree of arrays with one row per example of the lower loss, or None.
    """

    upper: Batch
    lower: Batch


class InMemoryDevices:
    """All devices' examples, concatenated in shared arrays.

    Args:
        devices: examples of each device, by name or in the order of their numbers. A
            name is the device's number by default.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> devices = InMemoryDevices(
        ...     {
        ...         "Oslo": LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2))),
        ...         "Rome": LocalExamples(upper=None, lower=np.ones((4, 2))),
        ...     }
        ... )
        >>> devices.names, devices.upper_sizes, devices.lower_sizes
        (('Oslo', 'Rome'), array([3, 0], dtype=int32), array([8, 4], dtype=int32))
    """

    def __init__(
        self, devices: Sequence[LocalExamples] | Mapping[str, LocalExamples]
    ) -> None:
        if not devices:
            raise ValueError("devices is empty. Pass at least one LocalExamples.")
        self._names = _names(devices) if isinstance(devices, Mapping) else None
        if isinstance(devices, Mapping):
            devices = list(devices.values())
        for number, device in enumerate(devices):
            require_local(number, device)
            if device.upper is None and device.lower is None:
                raise ValueError(
                    f"Device {number} has no examples. Remove the device, or assign it "
                    "at least one example."
                )
        devices = [jax.tree.map(on_host, device) for device in devices]
        self._upper = _concatenate("upper", [device.upper for device in devices])
        self._lower = _concatenate("lower", [device.lower for device in devices])
        # The places of the arrays that were passed, which are copied above.
        self._places = rows_in_memory([batch for device in devices for batch in device])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return self._names or tuple(map(str, range(self.device_count)))

    @classmethod
    def sharing(cls, examples: LocalExamples, device_count: int) -> "InMemoryDevices":
        """Return homogeneous devices that all draw from the same examples.

        The arrays are stored once, whatever the number of devices.

        Example:
            >>> import numpy as np
            >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
            >>> InMemoryDevices.sharing(examples, device_count=1000).device_count
            1000
        """
        _check_count(device_count)
        devices = cls([examples])
        for stored in (devices._upper, devices._lower):
            stored.offsets = np.repeat(stored.offsets, device_count)
            stored.sizes = np.repeat(stored.sizes, device_count)
            stored.held = np.repeat(stored.held, device_count)
        return devices

    @property
    def device_count(self) -> int:
        """The number of devices, K."""
        return len(self._upper.offsets)

    @property
    def in_memory(self) -> bool:
        """True: a cohort needs no loading."""
        return True

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""
        return self._upper.counts

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""
        return self._lower.counts

    @property
    def shares_examples(self) -> bool:
        """True if all devices draw from the same examples, as those of `sharing`.

        Example:
            >>> import numpy as np
            >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
            >>> InMemoryDevices.sharing(examples, device_count=2).shares_examples
            True
        """
        return len(np.unique(self._upper.offsets)) < self.device_count

    @property
    def pooled(self) -> LocalExamples:
        """All devices' examples as those of one device.

        Example:
            >>> import numpy as np
            >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
            >>> InMemoryDevices([examples, examples]).pooled.lower.shape
            (16, 2)
        """
        return LocalExamples(self._upper.pooled, self._lower.pooled)

    def local(self, device: int) -> LocalExamples:
        """Return the examples of one device.

        Example:
            >>> import numpy as np
            >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
            >>> InMemoryDevices([examples, examples]).local(1).lower.shape
            (8, 2)
        """

        def rows(stored: _Stored) -> Batch:
            if not stored.held[device]:
                return None
            first, size = stored.offsets[device], stored.sizes[device]
            return jax.tree.map(
                lambda leaf: np.asarray(leaf[first : first + size]), stored.arrays
            )

        return LocalExamples(rows(self._upper), rows(self._lower))

    def find_copies(self) -> Copies | None:
        """Return two sets of upper or lower examples that are the same; None without.

        They are the same if arrays that were passed have a row in common in memory,
        unless all rows of the array are equal, or if nearly all rows of one are equal
        to rows of the other. A few common examples that were copied are not found.

        Example:
            >>> import numpy as np
            >>> rows = np.arange(12.0).reshape(6, 2)
            >>> first = LocalExamples(upper=rows[:2], lower=rows[2:4])
            >>> second = LocalExamples(upper=rows[3:5], lower=rows[5:])
            >>> str(InMemoryDevices([first, second]).find_copies().second)
            'upper examples of device 1'
        """
        if self.shares_examples:
            return Copies(Holder(0, "upper"), Holder(1, "upper"))
        varied = [varied_arrays(level.arrays) for level in (self._upper, self._lower)]
        places = [
            list(compress(rows, varied[number % 2]))
            for number, rows in enumerate(self._places)
        ]
        pair = find_same_memory(places)
        if pair is None:
            local = map(self.local, range(self.device_count))
            pair = find_equal_rows([batch for device in local for batch in device])
        if pair is None:
            return None
        first, second = (
            Holder(number // 2, LocalExamples._fields[number % 2]) for number in pair
        )
        return Copies(first, second)

    def cohort(self, devices: Int[np.ndarray, "cohort"]) -> StoredData:
        """Return the shared arrays, with the offset and size of each of the devices."""
        return StoredData(self._upper.of(devices), self._lower.of(devices))


@dataclass(frozen=True)
class OnDemandDevices:
    """Devices whose examples are loaded for each round they participate in.

    A chunk's examples are padded to the capacities, so that one compiled program serves
    every chunk; the padding is never drawn.

    Attributes:
        device_count: number of enrolled devices, K.
        load: function from a device number to its examples; called on the host.
        upper_capacity: largest number of upper examples of any device.
        lower_capacity: largest number of lower examples of any device.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import LocalExamples, OnDemandDevices
        >>> def load(device):
        ...     rows = np.random.default_rng(device).normal(size=(8, 2))
        ...     return LocalExamples(upper=rows[:3], lower=rows[3:])
        >>> devices = OnDemandDevices(
        ...     1_000_000, load, upper_capacity=3, lower_capacity=5
        ... )
        >>> devices.cohort(np.array([7, 999_999])).lower.arrays.shape
        (10, 2)
    """

    device_count: int
    load: Callable[[int], LocalExamples]
    upper_capacity: int
    lower_capacity: int

    def __post_init__(self) -> None:
        _check_count(self.device_count)
        if not callable(self.load):
            raise TypeError(
                f"load is {self.load!r}, expected a function. Pass a function from a "
                "device number to LocalExamples."
            )

    @property
    def in_memory(self) -> bool:
        """False: every call of `cohort` loads the examples."""
        return False

    def cohort(self, devices: Int[np.ndarray, "cohort"]) -> StoredData:
        """Load these devices' examples and stack them, padded."""
        loaded = [self._load(int(device)) for device in devices]
        upper = [examples.upper for examples in loaded]
        lower = [examples.lower for examples in loaded]
        return StoredData(
            _stack("upper", devices, upper, self.upper_capacity),
            _stack("lower", devices, lower, self.lower_capacity),
        )

    def _load(self, device: int) -> LocalExamples:
        try:
            loaded = self.load(device)
        except Exception as error:
            error.add_note(f"This error was raised by load({device}).")
            raise
        require_local(device, loaded)
        require_both(device, loaded)
        return loaded


def _names(devices: Mapping[str, LocalExamples]) -> tuple[str, ...]:
    for name in devices:
        if not isinstance(name, str):
            raise TypeError(
                f"The name of a device is {name!r}. Pass names as text, such as "
                f"{str(name)!r}."
            )
    return tuple(devices)


def _check_count(device_count: int) -> None:
    if not isinstance(device_count, int | np.integer) or device_count < 1:
        raise ValueError(
            f"device_count is {device_count!r}, expected an integer of at least 1."
        )


def require_local(number: int, examples: Any) -> None:
    """Raise TypeError unless the examples of a device are `LocalExamples`."""
    if not isinstance(examples, LocalExamples):
        raise TypeError(
            f"Device {number}: the examples are a {type(examples).__name__}, expected "
            "LocalExamples. Wrap them: LocalExamples(upper=..., lower=...)."
        )


def require_both(number: int, examples: LocalExamples) -> None:
    """Raise ValueError unless a device that is loaded on demand has both levels."""
    for level, rows in zip(LocalExamples._fields, examples, strict=True):
        if rows is None:
            raise ValueError(
                f"Device {number} has no {level} examples, but devices that are loaded "
                "on demand need both. Return placeholders of the same shapes, and set "
                f"the weight of the device to 0 in Weights({level}=...)."
            )


@dataclass
class _Stored:
    """The examples of a level; a device without has a placeholder of one example."""

    arrays: Batch
    offsets: Int[np.ndarray, "devices"]
    sizes: Int[np.ndarray, "devices"]
    held: Bool[np.ndarray, "devices"]

    @property
    def counts(self) -> Int[np.ndarray, "devices"]:
        """The number of examples of each device."""
        return np.where(self.held, self.sizes, 0).astype(np.int32)

    @property
    def pooled(self) -> Batch:
        """The examples of all devices, without placeholders."""
        if self.held.all():
            return self.arrays
        rows = np.flatnonzero(np.repeat(self.held, self.sizes))
        return jax.tree.map(lambda leaf: leaf[rows], self.arrays)

    def of(self, devices: Int[np.ndarray, "cohort"]) -> StoredExamples:
        return StoredExamples(self.arrays, self.offsets[devices], self.sizes[devices])


def _concatenate(level: str, optional: Sequence[Batch]) -> _Stored:
    held = np.array([batch is not None for batch in optional])
    if not held.any():
        raise ValueError(
            f"No device has {level} examples. Give {level} examples to at least one."
        )
    batches = list(optional)
    if not held.all():
        # An example that a loss accepts, which zeros might not be.
        first = next(batch for batch in optional if batch is not None)
        _count(level, int(np.flatnonzero(held)[0]), first)
        placeholder = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], first)
        batches = [placeholder if batch is None else batch for batch in optional]
    counts = [_count(level, k, batch) for k, batch in enumerate(batches)]
    _require_alike(level, range(len(batches)), batches)
    _require_in_range(level, range(len(batches)), batches)
    arrays = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *batches)
    ends = np.cumsum(counts)
    return _Stored(
        arrays, (ends - counts).astype(np.int32), np.asarray(counts, np.int32), held
    )


def _stack(
    level: str,
    devices: Int[np.ndarray, "cohort"],
    batches: Sequence[Batch],
    capacity: int,
) -> StoredExamples:
    counts = [_count(level, int(k), b) for k, b in zip(devices, batches, strict=True)]
    _require_alike(level, devices, batches)
    _require_in_range(level, devices, batches)
    for device, count in zip(devices, counts, strict=True):
        if count > capacity:
            raise ValueError(
                f"Device {device} has {count} {level} examples, more than "
                f"{level}_capacity={capacity}. Raise {level}_capacity."
            )

    def fill(*leaves: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(leaves), capacity, *leaves[0].shape[1:]), leaves[0].dtype)
        for row, leaf in zip(rows, leaves, strict=True):
            row[: len(leaf)] = leaf
        return rows.reshape(-1, *leaves[0].shape[1:])

    return StoredExamples(
        jax.tree.map(fill, *batches),
        np.arange(len(batches), dtype=np.int32) * capacity,
        np.asarray(counts, np.int32),
    )


def _require_alike(
    level: str, devices: Sequence[int] | np.ndarray, batches: Sequence[Batch]
) -> None:
    def form(batch: Batch) -> str:
        return str(jax.tree.map(lambda leaf: (np.shape(leaf)[1:], _dtype(leaf)), batch))

    forms = [form(batch) for batch in batches]
    for device, device_form in zip(devices, forms, strict=True):
        if device_form != forms[0]:
            raise ValueError(
                f"Device {device}: {level} examples have shapes and dtypes "
                f"{device_form}, but those of device {devices[0]} have {forms[0]}. Use "
                "the same arrays, shapes and dtypes on all devices."
            )


def _require_in_range(
    level: str, devices: Sequence[int] | np.ndarray, batches: Sequence[Batch]
) -> None:
    """Raise an error for integers that would overflow where JAX uses 32 bits."""
    for device, batch in zip(devices, batches, strict=True):
        for leaf in jax.tree.leaves(batch):
            array = np.asarray(leaf)
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
            if array.dtype.kind not in "iu" or dtype == array.dtype or not array.size:
                continue
            limits = np.iinfo(dtype)
            for value in (array.min(), array.max()):
                if not limits.min <= int(value) <= limits.max:
                    raise ValueError(
                        f"Device {device}: {level} examples have the integer {value}, "
                        f"which overflows {dtype}. Number the values from 0, or enable "
                        '64 bits: jax.config.update("jax_enable_x64", True).'
                    )


def _dtype(leaf: Any) -> str:
    return str(np.asarray(leaf).dtype)


def _count(level: str, device: int, batch: Batch) -> int:
    leaves = jax.tree.leaves(batch)
    if not leaves:
        raise ValueError(
            f"Device {device}: {level} examples have no array. Pass NumPy arrays with "
            "one row per example."
        )
    if not all(np.ndim(leaf) for leaf in leaves):
        raise ValueError(
            f"Device {device}: {level} examples have a scalar, expected arrays. Pass "
            "NumPy arrays with one row per example."
        )
    for leaf in leaves:
        if np.asarray(leaf).dtype.kind not in "fiubV":
            raise ValueError(
                f"Device {device}: {level} examples have dtype {_dtype(leaf)}, "
                "expected real numbers. Encode strings as numbers, such as 0 and 1."
            )
        if isinstance(leaf, np.ma.MaskedArray):
            raise ValueError(
                f"Device {device}: {level} examples are a masked array, whose mask "
                "losses ignore. Fill masked values by .filled(...) or drop their rows."
            )
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) != 1:
        raise ValueError(
            f"Device {device}: {level} examples have arrays of {sorted(lengths)} rows. "
            "Pass arrays with one row per example."
        )
    (length,) = lengths
    if length == 0:
        raise ValueError(
            f"Device {device} has no {level} examples. Remove the device, or assign it "
            "at least one example."
        )
    return length
