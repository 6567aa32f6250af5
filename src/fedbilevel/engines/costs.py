"""Costs of an exchange, counted by tracing the functions of its phase."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

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
from fedbilevel.engines.program_text import inner_programs
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Batch
from fedbilevel.mathematics.settings import LARGEST

LOCAL_STEP = "fedbilevel_local_step"
"""Name of the program of one step within a traced phase."""


class Costs(NamedTuple):
    """Samples, exchanges and bytes, summed over devices.

    Attributes:
        upper_samples: number of examples drawn for the upper loss.
        lower_samples: number of examples drawn for the lower loss and its curvature.
        exchanges: number of exchanges between the server and the devices.
        bytes_down: bytes sent from the server to devices.
        bytes_up: bytes sent from devices to the server.

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
        """The number of examples drawn for both losses."""
        return self.upper_samples + self.lower_samples

    @property
    def bytes(self) -> int:
        """The number of bytes sent in both directions."""
        return self.bytes_up + self.bytes_down

    def plus(self, other: "Costs") -> "Costs":
        """Return the sum of two costs.

        Example:
            >>> Costs(exchanges=2).plus(Costs(exchanges=1)).exchanges
            3
        """
        return Costs(*(a + b for a, b in zip(self, other, strict=True)))

    def repeated(self, times: int) -> "Costs":
        """Return the costs multiplied by a number.

        Example:
            >>> Costs(exchanges=2).repeated(3).exchanges
            6
        """
        return Costs(*(times * cost for cost in self))


class DeviceCosts(NamedTuple):
    """The costs of one device in one exchange.

    Attributes:
        upper_samples: number of examples drawn for the upper loss.
        lower_samples: number of examples drawn for the lower loss.
        bytes_down: bytes that the device receives.
        bytes_up: bytes that the device sends.
        working_bytes: bytes of its working state and of its largest batch.

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
        """Return the costs of one exchange with a number of devices.

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
    """Return the costs of one device in a phase, by tracing it with shapes.

    Samples are counted at each draw and bytes from the messages, so no algorithm has to
    declare its costs. A draw counts once: if a phase draws inside a custom loop, the
    count is wrong, and the loop should become the steps of the phase. A mean over all
    examples counts all examples of this device.

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
    trace = _trace(phase, downlink, private, data, key)
    upper, lower = trace.data
    return DeviceCosts(
        upper_samples=upper.drawn,
        lower_samples=lower.drawn,
        bytes_down=tree.number_of_bytes(downlink),
        bytes_up=tree.number_of_bytes(trace.upload),
        working_bytes=trace.working_bytes + max(upper.batch_bytes, lower.batch_bytes),
    )


class WorkSizes(NamedTuple):
    """The sizes of a device's work in one exchange, which a site's rules limit.

    Attributes:
        smallest_batch: number of examples of the smallest batch; None without draws.
        largest_draw: number of examples of the largest draw, all of its batches
            together, or of the largest batch of a mean over all examples.
        steps: largest number of times that a computation is repeated: local steps,
            times the lengths of the loops within a step.
    """

    smallest_batch: int | None
    largest_draw: int
    steps: int


def work_sizes(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    limit: int = LARGEST,
    levels: Collection[str] = ("upper", "lower"),
) -> WorkSizes:
    """Return the sizes of a device's work in a phase, by tracing it.

    The sizes are read from the draws and loops, so no algorithm has to declare them. A
    mean over all examples is a batch of all of them, evaluated in parts. Loops whose
    length is only known when they run count once.

    Args:
        phase: phase to trace.
        downlink: shapes and dtypes of the message to the device.
        private: first private state of the device.
        data: data of the device.
        limit: number of examples of a draw above which tracing ends, since it takes
            minutes for many batches; the sizes are then those of this draw.
        levels: levels of which the device has examples; draws of the others, which
            count for nothing, are not measured.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.algorithms.queries import ask
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> phase = ask(
        ...     "draw",
        ...     broadcast=lambda server: server,
        ...     answer=lambda downlink, data, key: data.lower.draw(key, 4, draws=2),
        ...     server=lambda server, mean, key: mean,
        ... )
        >>> work_sizes(phase, 1.0, (), StoredData(rows, rows))
        WorkSizes(smallest_batch=4, largest_draw=8, steps=1)
    """
    try:
        trace = _trace(phase, downlink, private, data, jax.random.key(0), limit)
    except _LargeDrawError as large:
        batch_size, drawn = large.args
        return WorkSizes(batch_size, drawn, 1)
    measured: list[CountingExamples] = [getattr(trace.data, name) for name in levels]
    sizes = [size for examples in measured for size in examples.sizes]
    return WorkSizes(
        min(sizes, default=None),
        max(examples.largest_draw for examples in measured),
        _longest_loop(trace.program, phase.steps),
    )


def _longest_loop(program: Any, steps: int) -> int:
    """Return the largest product of the lengths of nested loops."""
    longest = 1
    for equation in program.eqns:
        times = 1
        if equation.primitive.name == "scan":
            times = int(equation.params["length"])
        elif equation.params.get("name") == LOCAL_STEP:
            times = steps
        for inner in inner_programs(equation.params):
            longest = max(longest, times * _longest_loop(inner, steps))
    return longest


class CountingData(NamedTuple):
    """The data of one device that count drawn examples.

    Attributes:
        upper: examples of the upper loss.
        lower: examples of the lower loss.
    """

    upper: "CountingExamples"
    lower: "CountingExamples"

    @classmethod
    def of(cls, data: DeviceData, limit: int = LARGEST) -> "CountingData":
        """Return the same data, with counters at 0."""
        return cls(
            CountingExamples(data.upper, limit), CountingExamples(data.lower, limit)
        )


class _LargeDrawError(Exception):
    """A draw above the limit: the size of a batch, and the number of examples."""


class _Trace(NamedTuple):
    data: CountingData
    upload: Upload
    working_bytes: int
    program: Any


def _trace(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    limit: int = LARGEST,
) -> _Trace:
    """Run a device through a phase, with shapes in place of numbers."""
    counting = CountingData.of(data, limit)
    working_bytes = 0

    def repeat(step: Step, carry: Carry, steps: int) -> Carry:
        nonlocal working_bytes
        working_bytes = tree.number_of_bytes(carry)
        before = [examples.drawn for examples in counting]
        if steps:  # All steps draw alike, so one is traced.
            carry = _one_step(step, carry)
        for examples, first in zip(counting, before, strict=True):
            examples.drawn = first + steps * (examples.drawn - first)
        return carry

    def work(downlink: Downlink, private: Private, key: RandomKey) -> DeviceResult:
        return run_device(phase, downlink, private, counting, key, repeat=repeat)

    program, result = jax.make_jaxpr(work, return_shape=True)(downlink, private, key)
    return _Trace(counting, result.upload, working_bytes, program.jaxpr)


def _one_step(step: Step, carry: Carry) -> Carry:
    """Take a step, as a program with a name within the traced program."""

    def first(carry: Carry) -> Carry:
        return step(carry, 0)

    first.__name__ = LOCAL_STEP
    carry = jax.jit(first)(carry)
    return carry


@dataclass
class CountingExamples:
    """Examples that count the drawn examples and record the sizes of batches.

    Attributes:
        examples: examples to draw from.
        limit: number of examples of a draw above which it raises an error.
        drawn: number of examples drawn so far.
        batch_bytes: size of the largest batch.
        largest_draw: number of examples of the largest draw, all batches together.
        sizes: sizes of all batches, in examples.
    """

    examples: Examples
    limit: int = LARGEST
    drawn: int = 0
    batch_bytes: int = 0
    largest_draw: int = 0
    sizes: set[int] = field(default_factory=set)

    @property
    def size(self) -> Any:
        """The number of examples of the device: an array, or a tensor."""
        return self.examples.size

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches, and count them."""
        if batch_size * max(draws, 1) > self.limit:
            raise _LargeDrawError(batch_size, batch_size * max(draws, 1))
        batches = self.examples.draw(key, batch_size, draws)
        self.drawn += batch_size * draws
        self.largest_draw = max(self.largest_draw, batch_size * draws)
        self.sizes.add(batch_size)
        sizes = map(tree.number_of_bytes, batches)
        self.batch_bytes = max([self.batch_bytes, *sizes])
        return batches

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean of a function over all examples, and count them."""

        def measured(batch: Batch) -> PyTree:
            self.batch_bytes = max(self.batch_bytes, tree.number_of_bytes(batch))
            return function(batch)

        # Examples that cannot be averaged raise an error before their size is read.
        mean = self.examples.mean(measured, batch_size)
        self.drawn += int(self.size)
        self.largest_draw = max(self.largest_draw, batch_size)
        self.sizes.add(int(self.size))
        return mean
