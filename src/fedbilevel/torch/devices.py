"""The data of devices as tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jaxtyping import Int, PyTree
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedbilevel.data.devices import (
    InMemoryDevices,
    LocalExamples,
    require_both,
    require_local,
)
from fedbilevel.error_text import first_line
from fedbilevel.mathematics.arrays import at_least_single, on_host
from fedbilevel.mathematics.batches import SiteBatch, SiteTerm
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import Batch
from fedbilevel.torch.conversion import to_tensors

ROWS = 1024
"""Rows that are read at once from a `Dataset`."""


class TensorExamples(NamedTuple):
    """Rows `offsets` to `offsets + sizes` of tensors that devices share.

    Attributes:
        arrays: tree of tensors with the same leading axis.
        offsets: first row of the device, or an array with that of each device.
        sizes: number of rows of the device, or an array with that of each device.
        position: that of the device among several, in a function that `vmap`
            vectorises; None for a single device.
        term: numbers of the devices and factors of their losses, if losses depend on
            them; batches are of type `SiteBatch` then.
    """

    arrays: Batch
    offsets: Any
    sizes: Any
    position: Tensor | None = None
    term: SiteTerm | None = None

    @property
    def size(self) -> Tensor:
        """The number of examples of the device."""
        sizes = torch.as_tensor(self.sizes)
        return sizes if self.position is None else sizes[self.position]

    def draw(self, key: HostKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches, uniform with replacement."""
        numbers = key.integers((draws, batch_size), self.sizes)
        rows = torch.from_numpy(numbers + self.offsets[..., None, None])
        if self.position is not None:
            # Each device looks up its own rows: the index differs between devices.
            rows = rows[self.position]
        return tuple(
            self._batch(
                jax.tree.map(
                    lambda array, i=i: array[rows[i].to(array.device)], self.arrays
                )
            )
            for i in range(draws)
        )

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean of a function over all examples, `batch_size` at a time.

        Raises:
            ValueError: in a function that `vmap` vectorises.
        """
        if self.position is not None:
            raise ValueError(
                "The algorithm reads all examples of a device, which cannot be "
                "vectorised over devices. Pass TensorSimulation(vectorised=False)."
            )
        total, size, first = None, int(self.sizes), int(self.offsets)
        for begin in range(first, first + size, batch_size):
            end = min(begin + batch_size, first + size)
            rows = jax.tree.map(lambda a, s=slice(begin, end): a[s], self.arrays)
            part = function(self._batch(rows))
            # Half precision would lose the parts of many.
            wide = jax.tree.map(
                lambda leaf, n=end - begin: at_least_single(leaf) * (n / size), part
            )
            total = wide if total is None else jax.tree.map(torch.add, total, wide)
        return jax.tree.map(lambda leaf, like: leaf.to(like.dtype), total, part)

    def _batch(self, rows: Batch) -> Batch:
        if self.term is None:
            return rows
        leaf = jax.tree.leaves(rows)[0]

        def column(values: Any) -> Tensor:
            tensor = torch.as_tensor(values, device=leaf.device)
            own = tensor if self.position is None else tensor[self.position]
            return own.expand(len(leaf))

        return SiteBatch(rows, SiteTerm(*map(column, self.term)))


class TensorData(NamedTuple):
    """The examples of one device, or of several.

    Attributes:
        upper: examples of the upper loss.
        lower: examples of the lower loss.
    """

    upper: TensorExamples
    lower: TensorExamples

    def at(self, position: Tensor) -> "TensorData":
        """Return the data of the device at a position, inside a `vmap`."""
        return TensorData(*(level._replace(position=position) for level in self))


class TensorDevices:
    """All devices' examples, concatenated in shared tensors.

    The tensors stay where they are: on the CPU or another device of PyTorch.

    Args:
        devices: examples of each device, by name or in the order of their numbers. Each
            level is a tree of tensors or of NumPy arrays, a `Dataset`, or a
            `DataLoader`, whose batches are read once.

    Example:
        >>> device = LocalExamples(upper=torch.ones(3, 2), lower=torch.ones(8, 2))
        >>> devices = TensorDevices([device, device])
        >>> devices.device_count, devices.lower_sizes
        (2, array([8, 8]))
    """

    in_memory = True

    def __init__(
        self, devices: Sequence[LocalExamples] | Mapping[str, LocalExamples]
    ) -> None:
        if not devices:
            raise ValueError("devices is empty. Pass at least one LocalExamples.")
        if not isinstance(devices, Mapping):
            devices = {str(number): local for number, local in enumerate(devices)}
        self.names = tuple(devices)
        self._levels = _levels_of(list(devices.values()))

    @classmethod
    def of(cls, devices: InMemoryDevices) -> "TensorDevices":
        """Return the devices whose examples are arrays as devices with tensors."""
        return cls(
            {
                name: to_tensors(devices.local(number))
                for number, name in enumerate(devices.names)
            }
        )

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.lower_sizes)

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""
        return self._levels[0].counts

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""
        return self._levels[1].counts

    def cohort(self, devices: Int[np.ndarray, "*cohort"]) -> Any:
        """Return the `TensorData` of a device, or of several."""
        return _data(self._levels, devices)


@dataclass(frozen=True)
class OnDemandTensors:
    """Devices whose examples are loaded for each exchange they participate in.

    Attributes:
        device_count: number of enrolled devices, K.
        load: function from a device number to its examples, in the forms that
            `TensorDevices` takes, such as two `DataLoader`s.

    Example:
        >>> def load(device):
        ...     rows = torch.full((4, 2), float(device))
        ...     return LocalExamples(upper=DataLoader(rows, batch_size=3), lower=rows)
        >>> devices = OnDemandTensors(1_000_000, load)
        >>> devices.cohort(np.array([7, 999_999])).upper.arrays.shape
        torch.Size([8, 2])
    """

    device_count: int
    load: Callable[[int], LocalExamples]

    @property
    def in_memory(self) -> bool:
        """False: every call of `cohort` loads the examples."""
        return False

    def cohort(self, devices: Int[np.ndarray, "*cohort"]) -> Any:
        """Load the `TensorData` of a device, or of several."""
        numbers = np.atleast_1d(devices)
        loaded = [self.load(int(number)) for number in numbers]
        for number, examples in zip(numbers, loaded, strict=True):
            require_local(int(number), examples)
            require_both(int(number), examples)
        levels = _levels_of(loaded, numbers)
        return _data(levels, np.arange(len(numbers)).reshape(np.shape(devices)))


class _Level(NamedTuple):
    """The examples of a level; a device without has a placeholder of one example."""

    arrays: Batch
    offsets: np.ndarray
    sizes: np.ndarray
    held: np.ndarray

    @property
    def counts(self) -> Int[np.ndarray, "devices"]:
        """The number of examples of each device."""
        return np.where(self.held, self.sizes, 0)


def _levels_of(
    devices: Sequence[LocalExamples], numbers: Sequence[int] | np.ndarray | None = None
) -> list[_Level]:
    """Return the upper and lower examples of all devices."""
    numbers = range(len(devices)) if numbers is None else numbers
    for number, local in zip(numbers, devices, strict=True):
        require_local(int(number), local)
    return [
        _concatenate(numbers, level, sources)
        for level, sources in zip(
            ("upper", "lower"), zip(*devices, strict=True), strict=True
        )
    ]


def _data(levels: Sequence[_Level], devices: Int[np.ndarray, "*cohort"]) -> TensorData:
    upper, lower = (
        TensorExamples(arrays, offsets[devices], sizes[devices])
        for arrays, offsets, sizes, _ in levels
    )
    return TensorData(upper, lower)


def _concatenate(
    numbers: Sequence[int] | np.ndarray, level: str, sources: Sequence[Any]
) -> _Level:
    parts, counts = [], []
    held = np.array([source is not None for source in sources])
    if not held.any():
        raise ValueError(
            f"No device has {level} examples. Give {level} examples to at least one."
        )
    first_held = int(np.flatnonzero(held)[0])
    for number, source in zip(numbers, sources, strict=True):
        if source is None:
            where, source = int(numbers[first_held]), sources[first_held]
            part, _ = _read(f"Device {where}: {level} examples", source)
            part, count = jax.tree.map(lambda leaf: leaf[:1], part), 1
        else:
            part, count = _read(f"Device {int(number)}: {level} examples", source)
        parts.append(part)
        counts.append(count)
    sizes = np.array(counts)
    first = jax.tree.map(lambda leaf: leaf.shape[1:], parts[0])
    for number, part in zip(numbers, parts, strict=True):
        form = jax.tree.map(lambda leaf: leaf.shape[1:], part)
        if form != first:
            raise ValueError(
                f"Device {int(number)}: {level} examples have shapes {form}, but those "
                f"of device {int(numbers[0])} have {first}. Give the examples of all "
                "devices the same shapes."
            )
    arrays = jax.tree.map(lambda *leaves: torch.cat(leaves), *parts)
    return _Level(arrays, np.cumsum(sizes) - sizes, sizes, held)


def _read(where: str, source: Any) -> tuple[Batch, int]:
    """Return examples as a tree of tensors with a row for each, and their number."""
    if isinstance(source, Dataset):
        # Reading it must not draw from the global random numbers.
        source = DataLoader(source, batch_size=ROWS, generator=torch.Generator())
    try:
        if isinstance(source, DataLoader):
            batches = list(source)
            if not batches:
                raise ValueError("no batch. Let it yield at least 1")
            source = jax.tree.map(lambda *leaves: torch.cat(leaves), *batches)
        part = to_tensors(source)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where} cannot be read as tensors: {first_line(error)}. Pass tensors, "
            "arrays of numbers, or a Dataset or DataLoader of at least one example, "
            "all of the same shapes."
        ) from error
    leaves = jax.tree.leaves(part)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise ValueError(
            f"{where} have {'a scalar' if leaves else 'no tensor'}. Pass tensors with "
            "one row per example."
        )
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) != 1:
        raise ValueError(
            f"{where} have tensors of {lengths} rows. Pass tensors with one row per "
            "example."
        )
    if not lengths[0]:
        raise ValueError(
            f"{where} are empty. Give every device at least one example for each loss."
        )
    return part, lengths[0]


def as_arrays(examples: LocalExamples) -> LocalExamples:
    """Return the examples of one device, in any form, as arrays of NumPy.

    Example:
        >>> rows = torch.ones(3, 2)
        >>> as_arrays(LocalExamples(DataLoader(rows, batch_size=2), rows)).upper.shape
        (3, 2)
    """
    levels = [
        None if source is None else _read(f"Device 0: {level} examples", source)[0]
        for level, source in zip(LocalExamples._fields, examples, strict=True)
    ]
    return LocalExamples(*jax.tree.map(on_host, levels))
