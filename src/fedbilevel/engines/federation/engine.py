"""The server of a federation: an engine whose devices are elsewhere."""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Server
from fedbilevel.engines.federation.absence import Absences
from fedbilevel.engines.federation.enrolment import EnrolledDevices
from fedbilevel.engines.federation.messages import (
    RefusedError,
    Task,
    packed,
    unpacked,
)
from fedbilevel.engines.federation.site import work_of_device
from fedbilevel.engines.federation.transport import Reply, Transport
from fedbilevel.engines.mean import WeightedMean, conclude, merge, stacked_mean
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.screening import acceptable
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem


class NoQuorumError(RuntimeError):
    """Too few devices answered an exchange; the message says what became of the rest.

    Example:
        >>> str(NoQuorumError("round 3: 1 of 4 devices answered"))
        'round 3: 1 of 4 devices answered'
    """


class Federation:
    """Carries out exchanges with devices that a transport reaches.

    Every reply is held to its form, to finite numbers and to the norm limit before it
    touches the mean, which is taken as replies arrive. Weights are the server's.

    Args:
        transport: reaches the devices.
        timeout: seconds that an exchange waits for replies.
        quorum: how many uploads an exchange needs at least.
        seed: that `run` is given too.

    Example:
        >>> Federation.__name__
        'Federation'
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float,
        quorum: int = 1,
        seed: int = 0,
    ) -> None:
        if quorum < 1:
            raise ValueError(f"a quorum is at least 1 device, but it is {quorum}.")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, but it is {timeout}.")
        self.devices = EnrolledDevices(transport.devices())
        self._transport, self._timeout, self._quorum = transport, timeout, quorum
        self._seed = seed
        self._run = uuid.uuid4().hex
        self._absences = Absences()
        self._forms: dict[PhaseReference, PyTree] = {}
        self._counted = np.zeros(self.devices.device_count, np.int64)

    def example_device(self, device_count: int) -> int:
        """Return the first: its data are zeros of the right form."""
        return 0

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both as they are; private states stay with their devices."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        places = {int(k): place for place, k in enumerate(participants.devices)}
        present = participants.weights > 0
        asked = [k for k, place in places.items() if present[place]]
        asked = self._absences.without_skipped(asked)
        task = self._task(job, reference, moment, state.server)
        form = self._form_of(job, reference, state)
        total: WeightedMean | None = None
        counted = np.zeros(len(places), bool)
        reasons = dict.fromkeys(asked, "did not answer in time")
        names = [self.devices.names[k] for k in asked]
        for reply in self._transport.exchange(task, names, self._timeout):
            device = self._answering(reply, task, reasons)
            if device is None:
                continue
            try:
                uplink, info = self._checked(reply, form, job, reference)
            except RefusedError as error:
                reasons[device] = str(error)
                continue
            del reasons[device]
            place = places[device]
            counted[place] = True
            share = jnp.asarray(participants.weights[[place]])
            mean = _mean_of_one(uplink, info, share)
            total = mean if total is None else _merge(total, mean)
            if not reasons:
                break
        self._absences.note(asked, reasons)
        if total is None or counted.sum() < self._quorum:
            raise NoQuorumError(_words(moment, self.devices.names, asked, reasons))
        self._counted[participants.devices[counted]] += 1
        server, dispersion = _conclude(
            job.algorithm,
            state.server,
            total,
            problem=job.problem,
            reference=reference,
        )
        report = Report(
            participants.devices, present, (counted,), total.info, dispersion
        )
        return RunState(server, state.private), report

    def _form_of(self, job: Job, reference: PhaseReference, state: RunState) -> PyTree:
        # A phase always sends the same; finding out what traces all of its work.
        if reference not in self._forms:
            self._forms[reference] = _uplink_form(job, reference, state)
        return self._forms[reference]

    def _task(
        self, job: Job, reference: PhaseReference, moment: Moment, server: Server
    ) -> Task:
        phase = reference.of(job.algorithm, job.problem)
        downlink = packed(phase.broadcast(server))
        return Task(
            self._run,
            reference,
            Moment(int(moment[0]), int(moment[1])),
            self._seed,
            self._counted.copy(),
            downlink,
        )

    def _answering(
        self, reply: Reply, task: Task, waiting: dict[int, str]
    ) -> int | None:
        """Return the device that a reply is from, if it was waited for."""
        if reply.device not in self.devices.names:
            return None
        device = self.devices.names.index(reply.device)
        if device not in waiting:
            return None
        if reply.failure is not None:
            waiting[device] = reply.failure
            return None
        # Late or repeated: an answer to another question.
        if (reply.run, tuple(reply.moment)) != (task.run, tuple(task.moment)):
            return None
        return device

    def _checked(
        self, reply: Reply, form: PyTree, job: Job, reference: PhaseReference
    ) -> tuple[PyTree, PyTree]:
        uplink, info = unpacked(reply.parcel, form)
        phase = reference.of(job.algorithm, job.problem)
        stacked = jax.tree.map(lambda leaf: leaf[None], phase.receive(uplink))
        (fine,) = _acceptable(stacked, job.norm_limit)
        if not fine:
            raise RefusedError("its upload was not finite, or too large")
        return stacked, jax.tree.map(lambda leaf: leaf[None], info)


def _uplink_form(job: Job, reference: PhaseReference, state: RunState) -> PyTree:
    """Return shapes and types of what a device sends and reports."""
    phase = reference.of(job.algorithm, job.problem)
    downlink = jax.eval_shape(phase.broadcast, state.server)
    private = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.private
    )
    uplink, _, info = jax.eval_shape(
        partial(work_of_device, phase), downlink, private, job.form, job.key
    )
    return uplink, info


def _words(
    moment: Moment,
    names: Sequence[str],
    asked: Sequence[int],
    reasons: dict[int, str],
) -> str:
    told = "; ".join(f"{names[k]} {why}" for k, why in sorted(reasons.items()))
    return (
        f"round {moment[0]}, exchange {moment[1]}: {len(asked) - len(reasons)} of "
        f"{len(asked)} devices answered, too few to go on. {told}"
    )


@jax.jit
def _acceptable(stacked: PyTree, norm_limit: tree.Rate | None) -> Bool[Array, "one"]:
    return acceptable(stacked, jnp.array([True]), norm_limit)


_mean_of_one = jax.jit(stacked_mean)
_merge = jax.jit(merge)


@partial(jax.jit, static_argnames=("problem", "reference"))
def _conclude(
    algorithm: FederatedAlgorithm,
    server: Server,
    mean: WeightedMean,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Any, PyTree]:
    return conclude(reference.of(algorithm, problem), server, mean)
