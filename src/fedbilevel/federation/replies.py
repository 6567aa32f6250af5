"""The replies of one exchange, validated and added to the mean as they arrive."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from fedbilevel.algorithms.protocol import Downlink, Info, Phase, Server, Upload
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.limits import reach_of
from fedbilevel.engines.mean import WeightedMean, jit_stacked_mean
from fedbilevel.engines.protocol import Job, Moment, PhaseReference, RunState
from fedbilevel.engines.screening import distances, is_acceptable
from fedbilevel.federation.messages import Answer
from fedbilevel.federation.streaming_mean import RunningMean, decode_upload
from fedbilevel.federation.transport import (
    Failure,
    FailureCause,
    RefusedError,
    Reply,
    readable,
)

NO_ANSWER = Failure(FailureCause.LATE, "did not answer in time")
OTHER_ANSWER = Failure(
    FailureCause.LATE, "did not answer in time, but sent an answer to another exchange"
)
NOT_AWAITED = Failure(
    FailureCause.NOT_AWAITED,
    "had not answered when the exchange closed early with enough answers",
)


def message_of(reply: Reply) -> bytes | Failure:
    """Return the message of a reply, or its failure if there is no message.

    Example:
        >>> message_of(Reply("north", b"answer"))
        b'answer'
        >>> message_of(Reply("north")).reason
        'did not answer in time'
    """
    if reply.message is not None:
        return reply.message
    cause, reason = reply.failure or NO_ANSWER
    return Failure(cause, readable(reason))


def invalid_answer(error: RefusedError) -> Failure:
    """Return the failure of a device whose answer cannot be read.

    Example:
        >>> invalid_answer(RefusedError("the message is empty")).reason
        'sent an invalid answer: the message is empty'
    """
    return Failure(FailureCause.FAILED, f"sent an invalid answer: {error}")


class Form(NamedTuple):
    """The shapes and types of a phase's arrays.

    Attributes:
        upload: upload of a device.
        info: metrics of a device.
        received: decoded upload, which the server averages.
    """

    upload: PyTree
    info: PyTree
    received: PyTree


class ExchangeInputs(NamedTuple):
    """The inputs of an exchange.

    Attributes:
        job: constant inputs of the run.
        reference: position of the phase.
        phase: the phase.
        moment: round and exchange.
        state: state before the exchange.
        weights: weight of each participant.
    """

    job: Job
    reference: PhaseReference
    phase: Phase
    moment: Moment
    state: RunState
    weights: Mapping[int, float]

    @property
    def chosen(self) -> list[int]:
        """The devices that may contribute: those with a weight."""
        return [device for device, weight in self.weights.items() if weight > 0]


class _Upload(NamedTuple):
    received: Upload
    info: Info
    distance: Float[np.ndarray, "variables"]


class ReplyCollector:
    """The replies of an exchange so far.

    With a distance limit or a robust mean, uploads are stored in memory until `settle`.

    Attributes:
        missing: failure of each device without an accepted upload.
        bytes_up: bytes of all replies.
    """

    def __init__(
        self,
        inputs: ExchangeInputs,
        run: str,
        form: Form,
        contacted: Mapping[str, int],
        downlink: Downlink,
    ) -> None:
        self._inputs, self._phase = inputs, inputs.phase
        self._limits = inputs.job.limits
        self._run, self._form = run, form
        self._contacted, self._weights = dict(contacted), inputs.weights
        self._aggregation = self._phase.aggregation
        self._running = RunningMean(form.received, form.info, self._aggregation)
        # A robust mean needs all uploads at once.
        self._stored: dict[int, tuple[Upload, Info]] = {}
        self.missing = dict.fromkeys(contacted.values(), NO_ANSWER)
        self.bytes_up = 0
        self._downlink = downlink
        self._expected = set(contacted.values())
        self._uploads: dict[int, _Upload] = {}

    @property
    def counted(self) -> Sequence[int]:
        """The devices whose uploads are in the mean."""
        return [
            device for device in self._contacted.values() if device not in self.missing
        ]

    @property
    def awaited(self) -> Sequence[int]:
        """The devices contacted last that may still answer."""
        # A device whose last exchange closed early first sends its answer to that.
        return [
            device
            for device, why in self.missing.items()
            if why.cause is FailureCause.LATE and device in self._expected
        ]

    @property
    def lost(self) -> Sequence[int]:
        """The devices that have lost their state."""
        return [
            device
            for device, why in self.missing.items()
            if why.cause is FailureCause.LOST_STATE
        ]

    def expect(self, more: Mapping[str, int]) -> None:
        """Wait for these devices, contacted now or again."""
        self._contacted.update(more)
        self._expected = set(more.values())
        self.missing.update(dict.fromkeys(more.values(), NO_ANSWER))

    def take(self, reply: Reply) -> None:
        """Validate a reply, and accept its upload or note the failure."""
        if isinstance(reply.message, bytes):
            self.bytes_up += len(reply.message)
        device = self._contacted.get(reply.device)
        # The device was not contacted, or this is its second answer.
        if device is None or device not in self.missing:
            return
        message = message_of(reply)
        if isinstance(message, Failure):
            self.missing[device] = message
            return
        try:
            answer = Answer.decode(message)
            # The answer to this exchange may still arrive.
            if (answer.run, answer.moment) != (self._run, self._inputs.moment):
                if self.missing[device] == NO_ANSWER:
                    self.missing[device] = OTHER_ANSWER
                return
            upload, info = answer.read((self._form.upload, self._form.info))
        except RefusedError as error:
            self.missing[device] = invalid_answer(error)
            return
        received = self._received(upload)
        if not is_acceptable(received, info, self._limits):
            self.missing[device] = Failure(
                FailureCause.FAILED, self._limits.single_violation
            )
            return
        del self.missing[device]
        if not self._phase.is_compared or self._limits.distance is None:
            self._add(device, received, info)
            return
        # The distance limit depends on the median, known when all have answered.
        way = self._phase.deviations(received, self._downlink)
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], way)
        (distance,) = distances(np, stacked, np.array([True])).T
        self._uploads[device] = _Upload(received, info, distance)

    def _received(self, upload: Upload) -> Upload:
        if not self._phase.is_decoded:
            return upload
        decoded = decode_upload(
            self._inputs.job.algorithm,
            upload,
            self._downlink,
            problem=self._inputs.job.problem,
            reference=self._inputs.reference,
        )
        received: Upload = jax.tree.map(np.asarray, decoded)
        return received

    @property
    def near(self) -> int:
        """The number of uploads that would count if no other arrived."""
        too_far = 0
        if self._uploads:
            furthest = self._furthest()
            too_far = sum(
                not np.all(upload.distance <= furthest)
                for upload in self._uploads.values()
            )
        return len(self.counted) - too_far

    def _furthest(self) -> Float[np.ndarray, "variables"]:
        """Return the largest allowed distance, given the uploads so far."""
        limit = self._limits.distance
        assert limit is not None, "uploads are held only with a limit"
        stacked = np.stack(
            [upload.distance for upload in self._uploads.values()], axis=1
        )
        furthest: Float[np.ndarray, "variables"] = reach_of(
            np, stacked, np.ones(len(self._uploads), bool), limit
        )
        return furthest

    def settle(self) -> None:
        """Exclude uploads beyond the distance limit, and accept the others."""
        if not self._uploads:
            return
        limit, furthest = self._limits.distance, self._furthest()
        assert limit is not None, "uploads are held only with a limit"
        for device, (received, info, distance) in sorted(self._uploads.items()):
            if np.all(distance <= furthest):
                self._add(device, received, info)
            else:
                times = float(limit) * np.max(distance / furthest)
                self.missing[device] = Failure(
                    FailureCause.FAILED,
                    f"upload is {times:.3g} times as far from the downlink as the "
                    f"median upload, more than distance_limit={float(limit):g}",
                )
        self._uploads = {}

    def _add(self, device: int, received: Upload, info: Info) -> None:
        if self._aggregation.mean is not None:
            self._stored[device] = received, info
        else:
            self._running.add(received, info, float(self._weights[device]))

    def mean(self, server: Server) -> WeightedMean:
        """Return the mean of all accepted uploads, given the server's state."""
        if self._aggregation.mean is None:
            return self._running.value
        # The order of arrival must not change the result.
        devices = sorted(self._stored)
        received, infos = jax.tree.map(
            lambda *rows: np.stack(rows), *(self._stored[device] for device in devices)
        )
        mean: WeightedMean = jit_stacked_mean(
            Inputs.of(self._inputs.job, server, self._inputs.moment),
            received,
            infos,
            np.array([float(self._weights[device]) for device in devices]),
            program=PhaseProgram(self._inputs.job.problem, self._inputs.reference),
        )
        return mean

    def close(self) -> list[int]:
        """Close early; return the devices that might still have answered."""
        awaited = list(self.awaited)
        self.missing.update(dict.fromkeys(awaited, NOT_AWAITED))
        return awaited
