"""A soak test in one process: exchanges leak no memory.

The small version of the soak test of `test_flare_equality`, which observes 500
exchanges of separate processes.
"""

import gc
import weakref

import jax
import numpy as np
import pytest

from fedbilevel import run
from fedbilevel.deployment.gc_control import EVERY, GarbageCollector
from tests.engines.federation import START
from tests.federation.alike import PROBLEM, WEIGHTS, algorithm, sites
from tests.federation.sites import enrolled, federation

EXCHANGES = 40


@pytest.mark.nightly
def test_an_exchange_leaves_no_object_and_no_array():
    among = sites("FedBiO")
    rounds = run(
        PROBLEM,
        algorithm("FedBiO"),
        enrolled(among),
        *START,
        rounds=EXCHANGES + 1,
        weights=WEIGHTS,
        engine=federation(among),
    )
    held = []
    for result in rounds:
        if result.number + 1 in (EXCHANGES // 2, EXCHANGES):
            gc.collect()
            held.append((len(gc.get_objects()), len(jax.live_arrays())))
    before, after = held
    assert after[0] - before[0] < EXCHANGES / 4
    assert after[1] <= before[1]


class Message:
    """A reference cycle with a buffer, as in the messages of NVIDIA FLARE."""

    def __init__(self) -> None:
        self.buffer = np.zeros(100_000)
        self.itself = self


def test_messages_that_refer_to_themselves_are_collected_every_few_exchanges():
    garbage = GarbageCollector()
    gc.disable()
    try:
        left = [weakref.ref(Message()) for _ in range(EVERY)]
        for _ in range(EVERY - 1):
            garbage.collect()
        assert all(item() is not None for item in left)
        garbage.collect()
        assert all(item() is None for item in left)
    finally:
        gc.enable()
        gc.unfreeze()
