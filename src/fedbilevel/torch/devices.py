"""The data of devices as tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jaxtyping import Int, PyTree
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
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
    """

    arrays: Batch
    offsets: Any
    sizes: Any
    position: Tensor | None = None

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
            jax.tree.map(
                lambda array, i=i: array[rows[i].to(array.device)], self.arrays
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
            part = function(
                jax.tree.map(lambda a, s=slice(begin, end): a[s], self.arrays)
            )
            part = jax.tree.map(lambda leaf, n=end - begin: leaf * (n / size), part)
            total = part if total is None else jax.tree.map(torch.add, total, part)
        return total


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
        devices: examples of each device. Each level is a tree of tensors or of NumPy
            arrays, a `Dataset`, or a `DataLoader`, whose batches are read once.

    Example:
        >>> device = LocalExamples(upper=torch.ones(3, 2), lower=torch.ones(8, 2))
        >>> devices = TensorDevices([device, device])
        >>> devices.device_count, devices.lower_sizes
        (2, array([8, 8]))
    """

    in_memory = True

    def __init__(self, devices: Sequence[LocalExamples]) -> None:
        if not devices:
            raise ValueError("devices is empty. Pass at least one LocalExamples.")
        self._levels = _levels_of(devices)

    @classmethod
    def of(cls, devices: InMemoryDevices) -> "TensorDevices":
        """Return the devices whose examples are arrays as devices with tensors."""
        local = map(devices.local, range(devices.device_count))
        return cls([to_tensors(examples) for examples in local])

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.lower_sizes)

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""
        return self._levels[0][2]

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""
        return self._levels[1][2]

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
        levels = _levels_of([self.load(int(number)) for number in numbers], numbers)
        return _data(levels, np.arange(len(numbers)).reshape(np.shape(devices)))


class _Level(NamedTuple):
    arrays: Batch
    offsets: np.ndarray
    sizes: np.ndarray


def _levels_of(
    devices: Sequence[LocalExamples], numbers: Sequence[int] | np.ndarray | None = None
) -> list[_Level]:
    """Return the upper and lower examples of all devices."""
    numbers = range(len(devices)) if numbers is None else numbers
    return [_concatenate(numbers, level) for level in zip(*devices, strict=True)]


def _data(levels: Sequence[_Level], devices: Int[np.ndarray, "*cohort"]) -> TensorData:
    upper, lower = (
        TensorExamples(arrays, offsets[devices], sizes[devices])
        for arrays, offsets, sizes in levels
    )
    return TensorData(upper, lower)


def _concatenate(numbers: Sequence[int] | np.ndarray, sources: Sequence[Any]) -> _Level:
    parts = list(map(_read, sources))
    sizes = np.array([len(jax.tree.leaves(part)[0]) for part in parts])
    if not sizes.all():
        raise ValueError(
            f"Device {int(numbers[int(np.argmin(sizes))])} has no example. Give every "
            "device at least one example for each loss."
        )
    arrays = jax.tree.map(lambda *leaves: torch.cat(leaves), *parts)
    return _Level(arrays, np.cumsum(sizes) - sizes, sizes)


def _read(source: Any) -> Batch:
    """Return examples as a tree of tensors with a row for each."""
    if isinstance(source, Dataset):
        source = DataLoader(source, batch_size=ROWS)
    if isinstance(source, DataLoader):
        return jax.tree.map(lambda *leaves: torch.cat(leaves), *source)
    return jax.tree.map(torch.as_tensor, source)
