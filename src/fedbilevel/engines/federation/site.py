"""The client half: a device that does what it is asked, with data that stay with it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    FederatedAlgorithm,
    Info,
    Private,
    Uplink,
)
from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.examples import DeviceData, RandomKey, one_device
from fedbilevel.engines.federation.enrolment import Enrolment
from fedbilevel.engines.federation.messages import (
    RefusedError,
    Task,
    packed,
    unpacked,
)
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import PhaseReference, device_key
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class Site:
    """One device of a federation.

    It draws the same samples as the device of its number would in a simulation.

    Args:
        number: among all enrolled devices.
        problem: the two losses.
        algorithm: what devices and server do.
        examples: what it holds; they never leave it.
        x: where the upper variable starts; its shapes are what matters.
        y: where the lower variable starts.

    Example:
        >>> Site.__name__
        'Site'
    """

    def __init__(
        self,
        number: int,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        examples: LocalExamples,
        x: Upper,
        y: Lower,
    ) -> None:
        self.enrolment = Enrolment.of(examples)
        self._number, self._problem, self._algorithm = number, problem, algorithm
        self._data = one_device(InMemoryDevices([examples]).cohort(np.array([0])))
        server, private = canonical(algorithm.init(problem, canonical(x), canonical(y)))
        self._server = jax.eval_shape(lambda: server)
        # What it kept, by how many of its exchanges had counted before.
        self._kept: dict[int, Private] = {0: private}
        self._run: str | None = None
        self._forms: dict[PhaseReference, PyTree] = {}

    def answer(self, task: Task) -> dict[str, np.ndarray]:
        """Carry out a task; return all that leaves the device.

        Raises:
            RefusedError: if the task cannot be carried out here; says why.
        """
        phase = task.reference.of(self._algorithm, self._problem)
        if task.reference not in self._forms:
            form = jax.eval_shape(phase.broadcast, self._server)
            self._forms[task.reference] = form
        downlink = unpacked(task.downlink, self._forms[task.reference])
        before = int(task.counted[self._number])
        if task.run != self._run:
            self._run, self._kept = task.run, {0: self._kept[min(self._kept)]}
        stateful = bool(jax.tree.leaves(self._kept))
        if before not in self._kept and stateful:
            raise RefusedError("what this device kept was lost when it was restarted")
        private = self._kept.get(before, self._kept[min(self._kept)])
        key = device_key(jax.random.key(task.seed), task.moment, self._number)
        uplink, kept, info = _work(
            self._algorithm,
            downlink,
            private,
            self._data,
            key,
            problem=self._problem,
            reference=task.reference,
        )
        # Until the server says what counted, either state may be asked for.
        self._kept = {before: private, before + 1: kept}
        return packed((uplink, info))


@partial(jax.jit, static_argnames=("problem", "reference"))
def _work(
    algorithm: FederatedAlgorithm,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Uplink, Private, Info]:
    return work_of_device(
        reference.of(algorithm, problem), downlink, private, data, key
    )


def work_of_device(
    phase: Any, downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
) -> tuple[Uplink, Private, Info]:
    """Return what one device sends, keeps and reports after an exchange.

    Example:
        >>> work_of_device.__name__
        'work_of_device'
    """
    fold = jax.random.fold_in

    def step(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, None]:
        return phase.step(carry, data, fold(key, number + 1)), None

    carry = phase.start(downlink, private, data, fold(key, 0))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(phase.steps))
    finished: tuple[Uplink, Private, Info] = phase.finish(
        carry, downlink, fold(key, phase.steps + 1)
    )
    return finished
