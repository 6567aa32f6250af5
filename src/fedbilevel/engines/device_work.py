"""One device's way through a phase: it starts, takes its steps, and finishes.

Every engine sends devices this way: mapped over many and compiled, one after another
and uncompiled, alone at a site, or with shapes in place of numbers to count costs. They
differ in how steps are repeated and in what is done around each call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
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

Step: TypeAlias = Callable[[Carry, Int[Array, ""] | int], Carry]
"""One local step, which is told its number."""
Repeat: TypeAlias = Callable[[Step, Carry, int], Carry]
"""Takes so many steps from a first state."""
Call: TypeAlias = Callable[..., Any]
"""Calls a function with arguments, and is told what it is called for."""


class DeviceResult(NamedTuple):
    """What a device ends an exchange with.

    Attributes:
        upload: what it sends.
        private: what it keeps.
        info: what it reports.

    Example:
        >>> DeviceResult(Upload((1.0,)), (), {}).upload.update
        (1.0,)
    """

    upload: Upload
    private: Private
    info: Info


def scanned(step: Step, carry: Carry, steps: int) -> Carry:
    """Take all steps in one compiled loop.

    Example:
        >>> float(scanned(lambda carry, number: carry + number, 0, 4))
        6.0
    """

    def body(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, None]:
        return step(carry, number), None

    carry, _ = jax.lax.scan(body, carry, jnp.arange(steps))
    return carry


def one_by_one(step: Step, carry: Carry, steps: int) -> Carry:
    """Take one step after another, in Python.

    Example:
        >>> one_by_one(lambda carry, number: carry + number, 0, 4)
        6
    """
    for number in range(steps):
        carry = step(carry, number)
    return carry


def _plainly(name: str, function: Callable[..., Any], *arguments: PyTree) -> Any:
    return function(*arguments)


def run_device(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    *,
    repeat: Repeat = scanned,
    call: Call = _plainly,
) -> DeviceResult:
    """Carry out a device's part of one exchange.

    Args:
        phase: of the algorithm.
        downlink: what the server has sent.
        private: what the device has kept.
        data: of the device.
        key: of the device in this exchange. Start, steps and finish have one each.
        repeat: how steps are taken.
        call: how each function of the phase is called.

    Example:
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
        >>> done = run_device(phase, 1, (), data, jax.random.key(0))
        >>> float(done.upload.update[0])
        4.0
    """
    fold = jax.random.fold_in

    def step(carry: Carry, number: Int[Array, ""] | int) -> Carry:
        own = fold(key, number + 1)
        return call(f"step {number}", phase.step, carry, data, own)

    carry = call("start", phase.start, downlink, private, data, fold(key, 0))
    carry = repeat(step, carry, phase.steps)
    last = fold(key, phase.steps + 1)
    returned = call("finish", phase.finish, carry, downlink, last)
    check_finished(phase, returned, private)
    return DeviceResult(*returned)
