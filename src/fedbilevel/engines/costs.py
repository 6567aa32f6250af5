"""What an exchange costs, read off the phase's own functions and arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.engines.device_work import DeviceResult, Step, run_device
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Batch


class Costs(NamedTuple):
    """What has been spent, summed over devices.

    Attributes:
        upper_samples: examples drawn for the upper loss.
        lower_samples: examples drawn for the lower loss, its curvature included.
        exchanges: times that the server and the devices exchanged messages.
        bytes_down: sent from the server to devices.
        bytes_up: sent from devices to the server.

    Example:
        >>> Costs(upper_samples=3, exchanges=1).plus(Costs(lower_samples=4)).samples
        7
    """

    upper_samples: int = 0
    lower_samples: int = 0
    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def samples(self) -> int:
        """All examples drawn, for either loss."""
        return self.upper_samples + self.lower_samples

    @property
    def bytes(self) -> int:
        """All bytes sent, both ways."""
        return self.bytes_up + self.bytes_down

    def plus(self, other: "Costs") -> "Costs":
        """Return the sum.

        Example:
            >>> Costs(exchanges=2).plus(Costs(exchanges=1)).exchanges
            3
        """
        return Costs(*(a + b for a, b in zip(self, other, strict=True)))

    def repeated(self, times: int) -> "Costs":
        """Return the costs of spending it so many times.

        Example:
            >>> Costs(exchanges=2).repeated(3).exchanges
            6
        """
        return Costs(*(times * one for one in self))


class DeviceCosts(NamedTuple):
    """What one device spends in one exchange.

    Attributes:
        upper_samples: examples drawn for the upper loss.
        lower_samples: examples drawn for the lower loss.
        bytes_down: the size of what it receives.
        bytes_up: the size of what it sends.
        working_bytes: the size of its working state and of its largest batch.

    Example:
        >>> DeviceCosts(1, 2, 30, 40, 50).times(10)
        Costs(upper_samples=10, lower_samples=20, exchanges=1, bytes_down=300,
              bytes_up=400)
    """

    upper_samples: int
    lower_samples: int
    bytes_down: int
    bytes_up: int
    working_bytes: int

    def times(self, devices: int) -> Costs:
        """Return the costs of one exchange with so many devices.

        Example:
            >>> DeviceCosts(1, 2, 30, 40, 50).times(2).bytes_up
            80
        """
        return Costs(
            upper_samples=devices * self.upper_samples,
            lower_samples=devices * self.lower_samples,
            exchanges=1,
            bytes_down=devices * self.bytes_down,
            bytes_up=devices * self.bytes_up,
        )


def device_costs(
    phase: Phase, server: Server, private: Private, data: DeviceData, key: RandomKey
) -> DeviceCosts:
    """Follow one device through a phase, with shapes in place of numbers.

    Samples are counted where they are drawn and bytes on what is sent, so no algorithm
    has to state its own costs. A draw counts once: a phase that draws inside a loop of
    its own would be counted wrongly, and should make that loop its steps. A mean over
    all examples counts as many as the device at hand has.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel.algorithms.momentum import initial_state, local_phase
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> phase = local_phase(3, lambda state, data, key: state)
        >>> state = initial_state(jnp.ones(2), jnp.ones(5))
        >>> costs = device_costs(
        ...     phase, state, (), StoredData(rows, rows), jax.random.key(0)
        ... )
        >>> costs.bytes_up  # twice x and twice y, single precision
        56
    """
    server = jax.tree.map(jax.numpy.asarray, server)
    downlink = jax.eval_shape(phase.broadcast, server)
    followed = _follow(phase, downlink, private, data, key)
    upper, lower = followed.data
    return DeviceCosts(
        upper_samples=upper.drawn,
        lower_samples=lower.drawn,
        bytes_down=tree.number_of_bytes(downlink),
        bytes_up=tree.number_of_bytes(followed.upload),
        working_bytes=followed.working_bytes
        + max(upper.batch_bytes, lower.batch_bytes),
    )


def smallest_batch(
    phase: Phase, downlink: Downlink, private: Private, data: DeviceData
) -> int | None:
    """Return the size of the smallest batch that a device draws in a phase.

    Read off the draws themselves, so no algorithm has to state it. A mean over all
    examples is a batch of all of them.

    Args:
        phase: to be followed, with shapes in place of numbers.
        downlink: shapes and types of what the device receives.
        private: what it keeps at first.
        data: of the device.

    Returns:
        The number of examples; none if the phase draws nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.algorithms.queries import ask
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> phase = ask(
        ...     "draw",
        ...     broadcast=lambda server: server,
        ...     answer=lambda downlink, data, key: data.lower.draw(key, 4, draws=1),
        ...     server=lambda server, mean, key: mean,
        ... )
        >>> smallest_batch(phase, 1.0, (), StoredData(rows, rows))
        4
    """
    upper, lower = _follow(phase, downlink, private, data, jax.random.key(0)).data
    return min(upper.sizes | lower.sizes, default=None)


class _CountedData(NamedTuple):
    upper: "_Counted"
    lower: "_Counted"


class _Followed(NamedTuple):
    data: _CountedData
    upload: Upload
    working_bytes: int


def _follow(
    phase: Phase, downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
) -> _Followed:
    """Send a device through a phase, with shapes in place of numbers."""
    counted = _CountedData(_Counted(data.upper), _Counted(data.lower))
    working_bytes = 0

    def repeat(step: Step, carry: Carry, steps: int) -> Carry:
        nonlocal working_bytes
        working_bytes = tree.number_of_bytes(carry)
        before = [examples.drawn for examples in counted]
        if steps:  # one stands for all
            carry = step(carry, 0)
        for examples, first in zip(counted, before, strict=True):
            examples.drawn = first + steps * (examples.drawn - first)
        return carry

    def work(downlink: Downlink, private: Private, key: RandomKey) -> DeviceResult:
        return run_device(phase, downlink, private, counted, key, repeat=repeat)

    done = jax.eval_shape(work, downlink, private, key)
    return _Followed(counted, done.upload, working_bytes)


@dataclass
class _Counted:
    """Examples that remember how many were drawn, and in batches of which sizes."""

    examples: Examples
    drawn: int = 0
    batch_bytes: int = 0
    sizes: set[int] = field(default_factory=set)

    @property
    def size(self) -> Int[Array | np.ndarray, "*devices"]:
        return self.examples.size

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        batches = self.examples.draw(key, batch_size, draws)
        self.drawn += batch_size * draws
        self.sizes.add(batch_size)
        self.batch_bytes = max(self.batch_bytes, tree.number_of_bytes(batches[0]))
        return batches

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        def watched(batch: Batch) -> PyTree:
            self.batch_bytes = max(self.batch_bytes, tree.number_of_bytes(batch))
            return function(batch)

        self.drawn += int(self.size)
        self.sizes.add(int(self.size))
        return self.examples.mean(watched, batch_size)
