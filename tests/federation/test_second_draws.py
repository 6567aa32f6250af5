"""The same task from another state of the device has other samples and other noise."""

import jax
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    ExampleNoise,
    FedBiO,
    LocalExamples,
    with_transforms,
)
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import REHEARSAL, Site
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.wire_format import pack

pytestmark = pytest.mark.slow

NOISE = 5000.0
START = np.zeros(3), np.zeros(3)


def loss(x, y, batch):
    return ((batch - x) @ y) ** 2


def mean_loss(x, y, batch):
    return jax.vmap(loss, (None, None, 0))(x, y, batch).mean()


def test_a_rollback_to_another_state_does_not_repeat_the_noise():
    """A difference of two answers with equal noise would be free of noise."""
    draw = np.random.default_rng(0)
    held = LocalExamples(draw.normal(size=(40, 3)), draw.normal(size=(50, 3)))
    algorithm = with_transforms(
        FedBiO(0.1, batch_size=8, private_lower=True), ExampleNoise(1.0, NOISE)
    )
    problem = BilevelProblem(mean_loss, mean_loss)
    site = Site(0, problem, algorithm, held, *START, rules=REHEARSAL, run="a")
    server, _ = canonical(algorithm.init(problem, *canonical(START)))
    reference = PhaseReference(False, 0)
    phase = reference.of(algorithm, problem)

    def answer(number, x, counted):
        downlink = phase.broadcast(server._replace(x=np.full(3, x)))
        arrays = pack(jax.tree.map(np.asarray, downlink))
        key = np.zeros(2, np.uint32)
        task = Task("a", reference, Moment(number, 0), key, counted, arrays)
        (first, *_) = Answer.decode(site.answer(task.encode())).arrays.values()
        return first

    answer(0, 0.0, (0, 0))
    before = answer(1, 0.5, (0, 1))
    answer(0, 3.0, (0, 0))
    after = answer(1, 0.5, (0, 1))
    # The noise of an answer has a deviation of about 0.1 · 5000 / 8 in each entry.
    assert np.linalg.norm(before - after) > 10.0
