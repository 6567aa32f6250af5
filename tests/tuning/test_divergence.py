"""Divergence is distinguished from losses that x scales, or that start at 0."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.tuning import divergence
from fedbilevel.tuning.divergence import divergence_check
from tests.tuning.toy import PROBLEM, devices

pytestmark = pytest.mark.slow

SCALED = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
    lower_loss=lambda x, y, batch: jnp.exp(x) * jnp.mean((y - batch) ** 2),
)


@pytest.mark.parametrize(
    ("problem", "start", "end", "diverged"),
    [
        (PROBLEM, (3.0, 3.0), (3.0, 3.1), False),  # the lower loss starts at 0
        (PROBLEM, (3.0, 3.0), (3.0, 1e3), True),
        (PROBLEM, (3.0, 3.0), (jnp.nan, 1.0), True),
        (PROBLEM, (1.0, 1.0), (1e3, 1e3), True),  # the upper loss starts at 0
        (SCALED, (0.0, 3.0), (20.0, 2.0), False),  # x scales the lower loss
        (SCALED, (20.0, 3.0), (0.0, 1e3), True),
    ],
)
def test_divergence(problem, start, end, diverged):
    assert divergence_check(problem, devices(), *start)(*end) is diverged


def test_some_examples_of_some_devices_are_enough(monkeypatch):
    monkeypatch.setattr(divergence, "EXAMPLES", 4)
    monkeypatch.setattr(divergence, "DEVICES", 2)
    held = [LocalExamples(np.ones(3), np.ones(7)) for _ in range(5)]
    # A device evaluated with weight 0 would have no finite loss.
    held[0] = LocalExamples(np.full(3, np.nan), np.full(7, np.nan))
    weights = [0.0, 1.0, 2.0, 1.0, 1.0]
    diverged = divergence_check(PROBLEM, InMemoryDevices(held), 3.0, 0.0, weights)
    assert not diverged(1.0, 1.0)
    assert diverged(1.0, 1e9)
