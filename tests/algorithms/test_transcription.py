"""The package against the plain-NumPy transcription of the paper's pseudo-code."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import (
    CubeRootDecay,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    run,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.data.examples import one_device
from fedbilevel.engines.protocol import Moment, device_key
from fedbilevel.metrics.consensus import consensus_error
from tests import quadratic
from tests.algorithms import transcription
from tests.algorithms.table import at_night

pytestmark = pytest.mark.slow

ROUNDS, BATCH, OPENING_BATCH, SEED = 5, 2, 6, 11
SERIES = NeumannSeries(terms=3, scale=0.15)


def fixed(t: int) -> float:
    return 0.2


def decaying(t: int) -> float:
    return float(0.4 / max(t + 2, 4) ** (1 / 3))


@pytest.mark.parametrize("devices", [4, *at_night(1)])
@pytest.mark.parametrize("local_steps", [3, *at_night(1)])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("eta", [decaying, *at_night(fixed)])
def test_both_algorithms_equal_their_transcription(devices, local_steps, number, eta):
    held = quadratic.devices(devices, per_device=9, noise=0.3)
    source = InMemoryDevices(held)
    settings: dict[str, Any] = {
        "learning_rate": 0.2 if eta is fixed else CubeRootDecay(0.4, plateau=4.0),
        "hypergradient": SERIES,
        "upper_rate": 0.3,
        "lower_rate": 0.5,
        "upper_mixing": 2.0,
        "lower_mixing": 3.0,
        "local_steps": local_steps,
        "batch_size": BATCH,
    }
    algorithm = (
        LocalBSGM(**settings)
        if number == 1
        else LocalBSGVRM(**settings, initial_batch_size=OPENING_BATCH)
    )
    key = jax.random.key(SEED)

    @partial(jax.jit, static_argnames="batch_size")
    def compiled_draw(round_number, device, i, batch_size):
        data = one_device(source.cohort(np.arange(devices)), device)
        step_key = jax.random.fold_in(
            device_key(key, Moment(round_number, 0), device), i
        )
        return draw_samples(data, step_key, batch_size, SERIES.curvature_draws)

    def draw(round_number, device, i):
        opening = OPENING_BATCH if number == 2 and i == 0 else BATCH
        return jax.tree.map(
            np.asarray, compiled_draw(round_number, device, i, batch_size=opening)
        )

    x = np.linspace(-1.0, 1.0, quadratic.X_SIZE)
    y = np.linspace(1.0, 2.0, quadratic.Y_SIZE)
    expected = transcription.run(
        number,
        transcription.Settings(2.0, 3.0, 0.3, 0.5, 0.15, local_steps, eta),
        x,
        y,
        devices,
        ROUNDS,
        draw,
    )
    got = list(
        run(quadratic.problem(), algorithm, source, x, y, rounds=ROUNDS, seed=SEED)
    )
    assert len(got) == ROUNDS
    for ours, theirs, error in zip(
        got, expected.averages, expected.consensus_errors, strict=True
    ):
        for value, other in zip(ours.server[:4], theirs, strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=1e-12)
        np.testing.assert_allclose(consensus_error(ours), error, rtol=0, atol=1e-12)
    assert int(got[-1].server.step) == ROUNDS * local_steps
    # The comparison is not trivial: x has moved, and the devices have drifted.
    assert np.linalg.norm(got[-1].x - x) > 1e-2
    if devices > 1 and local_steps > 1:
        assert consensus_error(got[-1]) > 1e-6
