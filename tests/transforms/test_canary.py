"""A canary bounds ε from below by experiment; the accountant's ε must be above it."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta

from fedbilevel import (
    BilevelProblem,
    Clip,
    FedBiO,
    GaussianNoise,
    InMemoryDevices,
    LocalExamples,
    sweep,
    with_transforms,
)
from fedbilevel.privacy import GaussianRelease, spent

NOISE, ROUNDS, DELTA = 2.0, 3, 1e-5
SEEDS = 3000
CONFIDENCE = 0.999


def loss(x, y, batch):
    return jnp.mean(batch) * x + 0.0 * y


def scores(canary: float, noise: float) -> np.ndarray:
    """Return how far x has moved in many runs, in clips of one device."""
    values = [1.0, -1.0, 0.5, canary]
    held = [LocalExamples(np.full(1, v), np.full(1, v)) for v in values]
    algorithm = with_transforms(FedBiO(0.1), Clip(0.2), GaussianNoise(noise))
    result = sweep(
        BilevelProblem(loss, loss),
        [algorithm],
        InMemoryDevices(held),
        0.0,
        0.0,
        rounds=ROUNDS,
        seeds=range(SEEDS),
        measure=lambda server: server.x,
    )
    moved: np.ndarray = np.asarray(result.measurements[0, :, -1])
    return moved / (0.2 / len(values))


def lower_bound(noise: float) -> float:
    """Return the largest ε below which the two distributions cannot both lie."""
    absent, present = (np.sort(scores(canary, noise)) for canary in (0.0, -100.0))
    # Half of the runs choose the threshold, the other half measure both errors.
    fair = slice(0, None, 2), slice(1, None, 2)
    best = 0.0
    for threshold in np.quantile(absent[fair[0]], np.linspace(0.9, 0.9995, 40)):
        found, false = (
            int(np.sum(runs[fair[1]] > threshold)) for runs in (present, absent)
        )
        trials = SEEDS // 2
        true_rate = beta.ppf((1 - CONFIDENCE) / 80, found, trials - found + 1)
        false_rate = beta.ppf(1 - (1 - CONFIDENCE) / 80, false + 1, trials - false)
        if true_rate > DELTA:
            best = max(best, float(np.log((true_rate - DELTA) / false_rate)))
    return best


@pytest.mark.nightly
def test_a_canary_never_shows_more_than_the_accountant():
    spent_epsilon = spent({GaussianRelease(NOISE): ROUNDS}, DELTA)
    shown = lower_bound(NOISE)
    assert 0.5 < shown <= spent_epsilon
    # The experiment would notice noise that is far too small.
    assert lower_bound(NOISE / 8) > spent_epsilon
