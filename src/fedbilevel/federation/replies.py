"""Replies of one exchange, checked and folded into the mean as they arrive."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from fedbilevel.algorithms.protocol import Downlink, Info, Upload
from fedbilevel.engines.limits import reach_of
from fedbilevel.engines.protocol import Job, Moment, PhaseReference
from fedbilevel.engines.screening import distances, is_acceptable
from fedbilevel.federation.messages import Answer
from fedbilevel.federation.streaming_mean import RunningMean, received_by_server
from fedbilevel.federation.transport import (
    Cause,
    Failure,
    RefusedError,
    Reply,
    readable,
)

NO_ANSWER = Failure(Cause.LATE, "did not answer in time")
OTHER_ANSWER = Failure(
    Cause.LATE, "did not answer in time, but sent an answer to another exchange"
)
NOT_AWAITED = Failure(
    Cause.NOT_AWAITED, "was not waited for, as enough others had answered"
)


class Form(NamedTuple):
    """Shapes and types of what one phase makes.

    Attributes:
        upload: what a device sends.
        info: what it reports.
        received: what the server averages of what it sent.

    Example:
        >>> Form._fields
        ('upload', 'info', 'received')
    """

    upload: PyTree
    info: PyTree
    received: PyTree


class _Held(NamedTuple):
    received: Upload
    info: Info
    gone: Float[np.ndarray, "variables"]


class ReplyCollector:
    """What has come of an exchange so far.

    Attributes:
        mean: of all uploads that counted. Where they may go only so far, each is held
            until `settle`, so that the server has room for all of them.
        missing: why the others did not count, by device.
        bytes_up: of all that came.

    Example:
        >>> ReplyCollector.__name__
        'ReplyCollector'
    """

    def __init__(
        self,
        job: Job,
        reference: PhaseReference,
        form: Form,
        run: str,
        moment: Moment,
        asked: Mapping[str, int],
        weights: Mapping[int, float],
        downlink: Downlink,
    ) -> None:
        self._job, self._reference = job, reference
        self._phase = reference.of(job.algorithm, job.problem)
        self._limits, self._form = job.limits, form
        self._run, self._moment = run, moment
        self._asked, self._weights = asked, weights
        self.mean = RunningMean(form.received, form.info)
        self.missing = dict.fromkeys(asked.values(), NO_ANSWER)
        self.bytes_up = 0
        self._downlink = downlink
        self._expected = set(asked.values())
        self._held: dict[int, _Held] = {}

    @property
    def counted(self) -> Sequence[int]:
        """The devices whose uploads are in the mean."""
        return [one for one in self._asked.values() if one not in self.missing]

    @property
    def awaited(self) -> Sequence[int]:
        """The devices that may answer yet, of those who were asked last."""
        # An answer to an earlier exchange is what one that was not waited for sends.
        return [
            device
            for device, why in self.missing.items()
            if why.cause is Cause.LATE and device in self._expected
        ]

    @property
    def lost(self) -> Sequence[int]:
        """The devices that can only begin afresh."""
        return [
            device
            for device, why in self.missing.items()
            if why.cause is Cause.LOST_STATE
        ]

    def expect(self, more: Mapping[str, int]) -> None:
        """Wait for these devices, which are among those asked by now."""
        self._expected = set(more.values())
        self.missing.update(dict.fromkeys(more.values(), NO_ANSWER))

    def take(self, reply: Reply) -> None:
        """Let a reply count, if it is what was asked for and nothing else."""
        if isinstance(reply.message, bytes):
            self.bytes_up += len(reply.message)
        device = self._asked.get(reply.device)
        # Not asked, or a second answer.
        if device is None or device not in self.missing:
            return
        if reply.message is None:
            # Names of sites are quoted: none is to be read into another's words.
            cause, reason = reply.failure or NO_ANSWER
            self.missing[device] = Failure(cause, readable(reason))
            return
        try:
            answer = Answer.decode(reply.message)
            # An answer to another question is late; the right one may yet come.
            if (answer.run, answer.moment) != (self._run, self._moment):
                if self.missing[device] == NO_ANSWER:
                    self.missing[device] = OTHER_ANSWER
                return
            upload, info = answer.read((self._form.upload, self._form.info))
        except RefusedError as error:
            reason = f"sent what was refused: {error}"
            self.missing[device] = Failure(Cause.FAILED, reason)
            return
        received = self._received(upload)
        if not is_acceptable(received, info, self._limits):
            self.missing[device] = Failure(Cause.FAILED, self._limits.broken_alone)
            return
        del self.missing[device]
        if not self._phase.is_compared or self._limits.distance is None:
            self._add(device, received, info)
            return
        # How far is too far is known when all have answered.
        way = self._phase.way(received, self._downlink)
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], way)
        (gone,) = distances(np, stacked, np.array([True])).T
        self._held[device] = _Held(received, info, gone)

    def _received(self, upload: Upload) -> Upload:
        if self._phase.receive is None:
            return upload
        decoded = received_by_server(
            self._job.algorithm,
            upload,
            self._downlink,
            problem=self._job.problem,
            reference=self._reference,
        )
        received: Upload = jax.tree.map(np.asarray, decoded)
        return received

    @property
    def near(self) -> int:
        """How many uploads would count if no other came."""
        too_far = 0
        if self._held:
            furthest = self._furthest()
            gone = (one.gone for one in self._held.values())
            too_far = sum(not np.all(own <= furthest) for own in gone)
        return len(self.counted) - too_far

    def _furthest(self) -> Float[np.ndarray, "variables"]:
        """Return how far uploads may go, by those that have come."""
        limit = self._limits.distance
        assert limit is not None, "nothing is held without a limit"
        gone = np.stack([one.gone for one in self._held.values()], axis=1)
        furthest: Float[np.ndarray, "variables"] = reach_of(
            np, gone, np.ones(len(self._held), bool), limit
        )
        return furthest

    def settle(self) -> None:
        """Leave out uploads that go too far; let the others count."""
        if not self._held:
            return
        limit, furthest = self._limits.distance, self._furthest()
        assert limit is not None, "nothing is held without a limit"
        for device, (received, info, own) in sorted(self._held.items()):
            if np.all(own <= furthest):
                self._add(device, received, info)
            else:
                times = float(limit) * np.max(own / furthest)
                self.missing[device] = Failure(
                    Cause.FAILED,
                    f"upload goes {times:.3g} times as far as the median device's from "
                    f"what was sent, where distance_limit={float(limit):g} allows less",
                )
        self._held = {}

    def _add(self, device: int, received: Upload, info: Info) -> None:
        self.mean.add(received, info, float(self._weights[device]))

    def close(self) -> list[int]:
        """End early; return the devices that might have answered yet."""
        waited_for = list(self.awaited)
        self.missing.update(dict.fromkeys(waited_for, NOT_AWAITED))
        return waited_for
