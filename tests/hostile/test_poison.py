"""Extreme finite numbers from a device, and the limits of their effect."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import BilevelProblem, FedBiO, ShroFBO, Upload
from fedbilevel.engines.mean import merge, stacked_mean
from fedbilevel.experiments.build import weights_of
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation.streaming_mean import RunningMean

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(LARGEST, -LARGEST), (-LARGEST, LARGEST)])
def test_a_mean_of_finite_numbers_is_finite(pair):
    uploads = np.array(pair, np.float32)
    means = {
        "stacked": stacked_mean(jnp.asarray(uploads), {}, jnp.array([0.75, 0.25])),
        "merged": merge(
            stacked_mean(jnp.asarray(uploads[:1]), {}, jnp.array([0.75])),
            stacked_mean(jnp.asarray(uploads[1:]), {}, jnp.array([0.25])),
        ),
    }
    running = RunningMean(uploads[0], {})
    for upload, weight in zip(uploads, (0.75, 0.25), strict=True):
        running.add(upload, {}, weight)
    means["running"] = running.value
    for mean in means.values():
        np.testing.assert_allclose(mean.upload, pair[0] / 2, rtol=1e-6)


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


@pytest.mark.parametrize(
    ("steps", "counts"),
    [(0.0, 0.0), (1.0, 1.0), (3.0, 3.0), (9e5, 3.0), (-9e5, 0.0), (np.nan, np.nan)],
)
def test_a_device_cannot_claim_more_steps_than_there_are(steps, counts):
    (phase,) = ShroFBO(0.1, local_steps=3).phases(BilevelProblem(loss, loss))
    share = tuple(np.ones(2) for _ in range(3))
    received, weight = phase.decode_upload(Upload(share, np.array(steps)), None)
    np.testing.assert_allclose(weight, counts, rtol=1e-5)
    np.testing.assert_array_equal(received, share)


class Claiming:
    """Three sites, one of which reports two thousand million examples."""

    upper_sizes = lower_sizes = np.array([20, 2**31 - 1, 30], np.int32)


def test_a_site_that_lies_about_its_size_counts_for_no_more_than_allowed():
    experiment = Experiment(FedBiO(0.1), weight_by_size=True, size_limit=40)
    np.testing.assert_array_equal(weights_of(experiment, Claiming()), [20, 40, 30])


def test_a_federation_with_weight_by_size_requires_a_limit():
    with pytest.raises(ValueError, match="give size_limit"):
        sites_of(Experiment(FedBiO(0.1), weight_by_size=True))
    assert sites_of(Experiment(FedBiO(0.1), weight_by_size=True, size_limit=40))
