"""Replies of one exchange, checked and folded into the mean as they arrive."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedbilevel.engines.federation.folding import fold, mean_of_nobody
from fedbilevel.engines.federation.messages import RefusedError
from fedbilevel.engines.federation.tasks import Answer
from fedbilevel.engines.federation.transport import Reply
from fedbilevel.engines.mean import WeightedMean
from fedbilevel.engines.protocol import Job, Moment, PhaseReference

NO_ANSWER = "did not answer in time"


class Gathering:
    """What has come of an exchange so far.

    Attributes:
        total: the mean of all uploads that counted.
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
        form: PyTree,
        run: str,
        moment: Moment,
        asked: Mapping[str, int],
        weights: Mapping[int, float],
    ) -> None:
        self._job, self._reference, self._form = job, reference, form
        self._run, self._moment = run, moment
        self._asked, self._weights = asked, weights
        phase = reference.of(job.algorithm, job.problem)
        self.total = mean_of_nobody(phase, form)
        self.missing = dict.fromkeys(asked.values(), NO_ANSWER)
        self.bytes_up = 0

    @property
    def counted(self) -> Sequence[int]:
        """The devices whose uploads are in the mean."""
        return [one for one in self._asked.values() if one not in self.missing]

    def take(self, reply: Reply) -> None:
        """Let a reply count, if it is what was asked for and nothing else."""
        self.bytes_up += len(reply.message or b"")
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
                return
            self._fold(device, *answer.read(self._form))
        except RefusedError as error:
            self.missing[device] = f"sent what was refused: {error}"
        else:
            del self.missing[device]

    def _fold(self, device: int, uplink: PyTree, info: PyTree) -> None:
        job, weight = self._job, self._weights[device]
        self.total, fine = _folded(
            job, self._reference, self.total, uplink, info, weight
        )
        if not fine:
            limit = "" if job.norm_limit is None else ", or larger than norm_limit"
            raise RefusedError(f"its numbers are not finite{limit}")


def warm_up(job: Job, reference: PhaseReference, form: PyTree) -> None:
    """Compile what the server does with a reply, so that no exchange waits for it.

    Example:
        >>> warm_up.__name__
        'warm_up'
    """
    phase = reference.of(job.algorithm, job.problem)
    uplink, info = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
    _folded(job, reference, mean_of_nobody(phase, form), uplink, info, weight=0.0)


def _folded(
    job: Job,
    reference: PhaseReference,
    total: WeightedMean,
    uplink: PyTree,
    info: PyTree,
    weight: float,
) -> tuple[WeightedMean, Bool[Array, ""]]:
    folded: tuple[WeightedMean, Bool[Array, ""]] = fold(
        job.algorithm,
        total,
        uplink,
        info,
        np.asarray(weight, np.float64),
        job.norm_limit,
        problem=job.problem,
        reference=reference,
    )
    return folded
