"""The client half: a device that does what it is asked, with data that stay with it."""

from functools import partial
from pathlib import Path
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
    Phase,
    Private,
    Uplink,
)
from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.examples import DeviceData, RandomKey, one_device
from fedbilevel.engines.federation.enrolment import Enrolment
from fedbilevel.engines.federation.kept import KeptStates
from fedbilevel.engines.federation.messages import RefusedError, unpacked
from fedbilevel.engines.federation.tasks import Answer, Task
from fedbilevel.engines.means import check_means
from fedbilevel.engines.preparation import canonical, references
from fedbilevel.engines.protocol import Moment, PhaseReference, device_key
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
        folder: where it keeps private states; none to keep them in memory.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4), np.ones(6))
        >>> site = Site(0, BilevelProblem(loss, loss), FedBiO(0.1), held, 3.0, 0.0)
        >>> site.enrolment.lower_size
        6
    """

    def __init__(
        self,
        number: int,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        examples: LocalExamples,
        x: Upper,
        y: Lower,
        folder: Path | None = None,
    ) -> None:
        self.enrolment = Enrolment.of(examples)
        self._number, self._problem, self._algorithm = number, problem, algorithm
        self._data = one_device(InMemoryDevices([examples]).cohort(np.array([0])))
        x, y = canonical(x), canonical(y)
        check_means(problem, x, y, self._data)
        server, private = canonical(algorithm.init(problem, x, y))
        self._server = jax.eval_shape(lambda: server)
        self._kept = KeptStates(private, folder)
        self._forms: dict[PhaseReference, PyTree] = {}

    def warm_up(self) -> None:
        """Compile every distinct phase once, so that no exchange waits for it."""
        opening = references(True, self._algorithm.opening(self._problem))
        phases = references(False, self._algorithm.phases(self._problem))
        for reference in dict.fromkeys((*opening, *phases)):
            downlink = jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
                self._form_of(reference),
            )
            private = self._kept.get("", None)
            self._work(reference, downlink, private, jax.random.key(0))

    def answer(self, message: bytes) -> bytes:
        """Carry out a task; return all that leaves the device.

        Raises:
            RefusedError: if the task cannot be carried out here; says why.
        """
        task = Task.decode(message)
        downlink = unpacked(task.arrays, self._form_of(task.reference))
        private = self._kept.get(task.run, self._last(task))
        key = device_key(jax.random.key(task.seed), task.moment, self._number)
        uplink, kept, info = self._work(task.reference, downlink, private, key)
        # Which of its states is the one to go on from, the server says next time.
        self._kept.put(task.run, task.moment, kept)
        return Answer.of(task.run, task.moment, uplink, info).encode()

    def _work(
        self,
        reference: PhaseReference,
        downlink: Downlink,
        private: Private,
        key: RandomKey,
    ) -> tuple[Uplink, Private, Info]:
        done: tuple[Uplink, Private, Info] = done_by_device(
            self._algorithm,
            downlink,
            private,
            self._data,
            key,
            problem=self._problem,
            reference=reference,
        )
        return done

    def _last(self, task: Task) -> Moment | None:
        """Return the last exchange that this device has counted in."""
        if not self._kept.stateful:
            return None
        if self._number >= len(task.counted):
            raise RefusedError("it does not say where this device stands")
        round_number, exchanges = task.counted[self._number].tolist()
        return Moment(round_number, exchanges - 1) if exchanges else None

    def _form_of(self, reference: PhaseReference) -> PyTree:
        if reference not in self._forms:
            try:
                phase = reference.of(self._algorithm, self._problem)
            except IndexError:
                raise RefusedError("it asks for a phase that there is not") from None
            self._forms[reference] = jax.eval_shape(phase.broadcast, self._server)
        return self._forms[reference]


@partial(jax.jit, static_argnames=("problem", "reference"))
def done_by_device(
    algorithm: FederatedAlgorithm,
    downlink: Downlink,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Uplink, Private, Info]:
    """Return what one device sends, keeps and reports after an exchange.

    Example:
        >>> done_by_device.__name__
        'done_by_device'
    """
    return work_of_device(
        reference.of(algorithm, problem), downlink, private, data, key
    )


def work_of_device(
    phase: Phase, downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
) -> tuple[Uplink, Private, Info]:
    """Return what one device sends, keeps and reports after an exchange.

    Example:
        >>> work_of_device.__name__
        'work_of_device'
    """
    fold = jax.random.fold_in

    def step(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, None]:
        return phase.step(carry, data, fold(key, number + 1)), None

    carry: Any = phase.start(downlink, private, data, fold(key, 0))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(phase.steps))
    finished: tuple[Uplink, Private, Info] = phase.finish(
        carry, downlink, fold(key, phase.steps + 1)
    )
    return finished
