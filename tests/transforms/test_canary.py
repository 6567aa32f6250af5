"""A canary bounds ε from below by experiment; the accountant's ε must be above it."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta

from fedbilevel import (
    BilevelProblem,
    Clip,
    ExampleNoise,
    FedBiO,
    GaussianNoise,
    InMemoryDevices,
    LocalExamples,
    Run,
    sweep,
    with_transforms,
)
from fedbilevel.privacy import GaussianRelease, PoissonDraws, spent

pytestmark = pytest.mark.nightly
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
    devices = InMemoryDevices(held)
    result = sweep(
        Run(BilevelProblem(loss, loss), algorithm, devices, 0.0, 0.0, rounds=ROUNDS),
        [algorithm],
        seeds=range(SEEDS),
        measure=lambda server: server.x,
    )
    moved: np.ndarray = np.asarray(result.measurements[0, :, -1])
    return moved / (0.2 / len(values))


def lower_bound(noise: float) -> float:
    """Return a lower bound of ε from runs with and without the canary."""
    absent, present = (np.sort(scores(canary, noise)) for canary in (0.0, -100.0))
    return bound_of(absent, present, SEEDS)


def bound_of(absent: np.ndarray, present: np.ndarray, seeds: int) -> float:
    """Return the largest ε below which the two distributions cannot both lie."""
    # Half of the runs choose the threshold, the other half measure both errors.
    fair = slice(0, None, 2), slice(1, None, 2)
    best = 0.0
    for threshold in np.quantile(absent[fair[0]], np.linspace(0.9, 0.9995, 40)):
        found, false = (
            int(np.sum(runs[fair[1]] > threshold)) for runs in (present, absent)
        )
        trials = seeds // 2
        true_rate = beta.ppf((1 - CONFIDENCE) / 80, found, trials - found + 1)
        false_rate = beta.ppf(1 - (1 - CONFIDENCE) / 80, false + 1, trials - false)
        if true_rate > DELTA:
            best = max(best, float(np.log((true_rate - DELTA) / false_rate)))
    return best


def test_a_canary_never_shows_more_than_the_accountant():
    spent_epsilon = spent({GaussianRelease(NOISE): ROUNDS}, DELTA)
    shown = lower_bound(NOISE)
    assert 0.5 < shown <= spent_epsilon
    # The experiment would notice noise that is far too small.
    assert lower_bound(NOISE / 8) > spent_epsilon


def example_scores(canary: float, noise: float, seeds: int) -> np.ndarray:
    """Return how far y has moved in many runs with noise by example, in clips."""
    # Others are zero, so that random numbers of examples do not hide the canary.
    values = np.array([*[0.0] * 8, canary])
    # The upper loss is 0, but no example may be one of both losses.
    held = LocalExamples(np.full(EXAMPLES, 7.0), values)
    algorithm = with_transforms(
        FedBiO(1.0, batch_size=EXAMPLES), ExampleNoise(1.0, noise)
    )
    problem = BilevelProblem(
        lambda x, y, batch: 0.0 * jnp.mean(batch) * x * y,
        lambda x, y, batch: jnp.mean(batch) * y + 0.0 * x,
    )
    result = sweep(
        Run(problem, algorithm, InMemoryDevices([held]), 0.0, 0.0, rounds=ROUNDS),
        [algorithm],
        seeds=range(seeds),
        measure=lambda server: server.y,
    )
    return np.asarray(result.measurements[0, :, -1]) * EXAMPLES


EXAMPLES = 9


def example_bound(noise: float, seeds: int) -> float:
    absent, present = (
        np.sort(example_scores(canary, noise, seeds)) for canary in (0.0, -100.0)
    )
    return bound_of(absent, present, seeds)


def example_epsilon(noise: float) -> float:
    # One of the three batches of lower examples in a round shows the canary; the
    # accountant counts all of them.
    release = GaussianRelease(noise, PoissonDraws(EXAMPLES, EXAMPLES))
    return spent({release: 3 * ROUNDS}, DELTA)


def test_a_canary_among_examples_never_shows_more_than_the_accountant():
    shown = example_bound(4.0, SEEDS)
    assert 0.1 < shown <= example_epsilon(4.0)
    # The experiment would notice noise that is far too small.
    assert example_bound(0.25, SEEDS) > example_epsilon(4.0)


def test_a_canary_among_examples_is_seen_without_noise_and_hidden_with_it():
    loud, quiet = example_bound(4.0, 400), example_bound(0.25, 400)
    assert loud <= example_epsilon(4.0)
    assert quiet > loud
    assert quiet <= example_epsilon(0.25)
