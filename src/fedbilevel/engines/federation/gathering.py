"""Replies of one exchange, checked and folded into the mean as they arrive."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxtyping import PyTree

from fedbilevel.engines.federation.folding import RunningMean, received_of
from fedbilevel.engines.federation.messages import RefusedError
from fedbilevel.engines.federation.tasks import Answer
from fedbilevel.engines.federation.transport import Reply
from fedbilevel.engines.protocol import Job, Moment, PhaseReference
from fedbilevel.engines.screening import is_acceptable, reason_for_exclusion

NO_ANSWER = "did not answer in time"
NOT_AWAITED = "was not waited for, as enough others had answered"
OTHER_ANSWER = "did not answer in time, but sent an answer to another exchange"


class Form(NamedTuple):
    """Shapes and types of what one phase makes.

    Attributes:
        uplink: what a device sends.
        info: what it reports.
        received: what the server averages of what it sent.

    Example:
        >>> Form._fields
        ('uplink', 'info', 'received')
    """

    uplink: PyTree
    info: PyTree
    received: PyTree


class Gathering:
    """What has come of an exchange so far.

    Attributes:
        mean: of all uploads that counted.
        missing: why the others did not count, by device.
        bytes_up: of all that came.

    Example:
        >>> Gathering.__name__
        'Gathering'
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
    ) -> None:
        self._phase = reference.of(job.algorithm, job.problem)
        self._norm_limit, self._form = job.norm_limit, form
        self._run, self._moment = run, moment
        self._asked, self._weights = asked, weights
        self.mean = RunningMean(form.received, form.info)
        self.missing = dict.fromkeys(asked.values(), NO_ANSWER)
        self.bytes_up = 0

    @property
    def counted(self) -> Sequence[int]:
        """The devices whose uploads are in the mean."""
        return [one for one in self._asked.values() if one not in self.missing]

    def take(self, reply: Reply) -> None:
        """Let a reply count, if it is what was asked for and nothing else."""
        if isinstance(reply.message, bytes):
            self.bytes_up += len(reply.message)
        device = self._asked.get(reply.device)
        # Not asked, or a second answer.
        if device is None or device not in self.missing:
            return
        if reply.message is None:
            self.missing[device] = reply.failure or NO_ANSWER
            return
        try:
            answer = Answer.decode(reply.message)
            # An answer to another question is late; the right one may yet come.
            if (answer.run, answer.moment) != (self._run, self._moment):
                if self.missing[device] == NO_ANSWER:
                    self.missing[device] = OTHER_ANSWER
                return
            uplink, info = answer.read((self._form.uplink, self._form.info))
        except RefusedError as error:
            self.missing[device] = f"sent what was refused: {error}"
            return
        received = received_of(self._phase, uplink)
        if not is_acceptable(received, info, self._norm_limit):
            self.missing[device] = reason_for_exclusion(self._norm_limit)
            return
        self.mean.add(received, info, float(self._weights[device]))
        del self.missing[device]

    def close(self) -> list[int]:
        """End early; return the devices that might have answered yet."""
        waited_for = [one for one, why in self.missing.items() if why == NO_ANSWER]
        self.missing.update(dict.fromkeys(waited_for, NOT_AWAITED))
        return waited_for
