"""The data of devices as tensors."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jaxtyping import Int, PyTree
from torch import Tensor

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import Batch
from fedbilevel.torch.conversion import to_tensors


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

    Args:
        devices: examples of each device; trees of tensors or of NumPy arrays.

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
        self._levels = [
            _concatenate([device[level] for device in devices]) for level in (0, 1)
        ]

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
        return TensorData(
            *(
                TensorExamples(arrays, offsets[devices], sizes[devices])
                for arrays, offsets, sizes in self._levels
            )
        )


def _concatenate(parts: Sequence[Batch]) -> tuple[Any, np.ndarray, np.ndarray]:
    sizes = np.array([len(jax.tree.leaves(part)[0]) for part in parts])
    if not sizes.all():
        raise ValueError(
            f"Device {int(np.argmin(sizes))} has no example. Give every device at "
            "least one example for each loss."
        )
    arrays = jax.tree.map(
        lambda *leaves: torch.cat([torch.as_tensor(leaf) for leaf in leaves]), *parts
    )
    return arrays, np.cumsum(sizes) - sizes, sizes
