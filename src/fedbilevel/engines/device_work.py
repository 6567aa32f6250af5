"""The work of one device in a phase: start, local steps, finish.

Every engine uses it: mapped over many devices and compiled, in turn and uncompiled, at
a site of a federation, or with shapes in place of numbers to count costs. Engines
differ in how they repeat steps (`Repeat`) and in how they call functions (`Call`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.engines.phase_checks import check_finished
from fedbilevel.mathematics import keys

Step: TypeAlias = Callable[[Carry, Int[Array, ""] | int], Carry]
"""A local step: a function of the carry and the number of the step."""
Repeat: TypeAlias = Callable[[Step, Carry, int], Carry]
"""A function that takes a number of steps from a first carry."""
Call: TypeAlias = Callable[..., Any]
"""A function that calls a function with arguments, given a name for messages."""


class DeviceResult(NamedTuple):
    """The result of a device's work in an exchange.

    Attributes:
        upload: message to the server.
        private: private state after the exchange.
        info: reported values.
    """

    upload: Upload
    private: Private
    info: Info


def scan_steps(step: Step, carry: Carry, steps: int) -> Carry:
    """Take all steps in one compiled loop.

    Example:
        >>> float(scan_steps(lambda carry, number: carry + number, 0, 4))
        6.0
    """
    # A scan over an array of numbers would take 8 bytes a step.
    return jax.lax.fori_loop(0, steps, lambda number, carry: step(carry, number), carry)


def loop_steps(step: Step, carry: Carry, steps: int) -> Carry:
    """Take all steps in a Python loop.

    Example:
        >>> loop_steps(lambda carry, number: carry + number, 0, 4)
        6
    """
    for number in range(steps):
        carry = step(carry, number)
    return carry


def _call(name: str, function: Callable[..., Any], *arguments: PyTree) -> Any:
    return function(*arguments)


def run_device(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    *,
    repeat: Repeat = scan_steps,
    call: Call = _call,
) -> DeviceResult:
    """Run a device's part of one exchange.

    Args:
        phase: phase of the algorithm.
        downlink: message from the server.
        private: private state of the device.
        data: data of the device.
        key: random key of the device in this exchange, from which the start, each step
            and the finish derive one each.
        repeat: function that takes the steps.
        call: function that calls each function of the phase.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> data = StoredData(rows, rows)
        >>> phase = Phase(
        ...     name="count",
        ...     steps=3,
        ...     broadcast=lambda server: server,
        ...     start=lambda downlink, private, data, key: downlink,
        ...     step=lambda carry, data, key: carry + 1,
        ...     finish=lambda carry, downlink, key: (Upload((carry,)), (), {}),
        ...     server=lambda server, mean, key: mean.update[0],
        ... )
        >>> result = run_device(phase, 1, (), data, jax.random.key(0))
        >>> float(result.upload.update[0])
        4.0
    """
    fold = keys.fold_in

    def step(carry: Carry, number: Int[Array, ""] | int) -> Carry:
        step_key = fold(key, number + 1)
        return call(f"step {number}", phase.step, carry, data, step_key)

    carry = call("start", phase.start, downlink, private, data, fold(key, 0))
    carry = repeat(step, carry, phase.steps)
    last = fold(key, phase.steps + 1)
    returned = call("finish", phase.finish, carry, downlink, last)
    check_finished(phase, returned, private)
    return DeviceResult(*returned)
