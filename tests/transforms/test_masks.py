"""Masks under noise: a device whose numbers are not finite counts as all others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedbilevel import (
    AdaptiveClip,
    AutoFedBiO,
    BilevelProblem,
    Clip,
    ClipEach,
    DeviceNoise,
    ExampleNoise,
    FedBiO,
    FixedPoint,
    GaussianNoise,
    InMemoryDevices,
    Limits,
    LocalExamples,
    NoUploadsError,
    Simulation,
    Upload,
    run,
    with_server_optimiser,
    with_transforms,
)
from fedbilevel.data.examples import StoredData, StoredExamples, one_device
from fedbilevel.deployment.job_files import prepare_for_job
from fedbilevel.engines.device_work import run_device
from fedbilevel.experiments.schema import Experiment, TransformSettings
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.transforms.clip import clip_to
from fedbilevel.transforms.masking import mask_unless_finite
from fedbilevel.transforms.stages import Sent
from tests.engines.test_equality import shards
from tests.transforms import observed
from tests.transforms.observed import DEVICES

PRIVATE = FedBiO(0.1, private_lower=True)


def device_noise(multiplier: float, devices: int = DEVICES) -> DeviceNoise:
    return DeviceNoise(multiplier, devices=devices)


def server_noise(multiplier: float) -> GaussianNoise:
    return GaussianNoise(multiplier)


def upload_of(algorithm: Any, value: float) -> Any:
    """Return what one device with examples of a value sends and stores, uncompiled."""
    phase = algorithm.phases(observed.PROBLEM)[0]
    server, private = algorithm.init(observed.PROBLEM, jnp.zeros(3), jnp.zeros(3))
    server, private = jax.tree.map(jnp.asarray, (server, private))
    data = one_device(observed.devices(value).cohort(np.array([observed.BAD])))
    downlink = phase.broadcast(server)
    return run_device(phase, downlink, private, data, jax.random.key(0)), private


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_device_sends_its_noise_and_keeps_its_state(value):
    algorithm = with_transforms(PRIVATE, Clip(1.0), device_noise(2.0))
    idle, _ = upload_of(algorithm, 0.0)
    result, before = upload_of(algorithm, value)
    for leaf, noise in zip(*map(jax.tree.leaves, (result[0], idle[0])), strict=True):
        np.testing.assert_array_equal(leaf, noise)
    for leaf, old in zip(*map(jax.tree.leaves, (result[1], before)), strict=True):
        np.testing.assert_array_equal(leaf, old)


def test_one_bad_number_masks_all_numbers():
    """Also those beside an update, votes, and a state that is not sent."""
    ones, bad = jnp.ones(2), jnp.array([1.0, jnp.nan])
    clean = Upload((ones,), Sent(ones, ones))
    states = (ones, ones, 3 * ones)
    for part, private, kept in [
        (clean, states[0], True),
        (clean._replace(update=(bad,)), ones, False),
        (clean._replace(beside=Sent(bad, ones)), ones, False),
        (clean._replace(beside=Sent(ones, bad)), ones, False),
        (clean, bad, False),
    ]:
        shown, after = mask_unless_finite(part, private, 3 * ones, ())
        for leaf in jax.tree.leaves(shown):
            np.testing.assert_array_equal(leaf, ones if kept else 0 * ones)
        np.testing.assert_array_equal(after, private if kept else 3 * ones)
    # The server's own point is public: its run has diverged, and ends.
    shown, after = mask_unless_finite(clean._replace(update=(bad,)), ones, ones, bad)
    assert np.isnan(shown.update[0][1])


@pytest.mark.parametrize("size", [1e37, 1e38, 3e38])
def test_a_huge_update_is_clipped(size):
    """XLA rounds the reciprocal of 1e38 to zero; the update was not clipped."""
    rows = jnp.full((2, 3), size, jnp.float32)
    clipped = jax.jit(jax.vmap(lambda row: clip_to((row,), jnp.float32(1.0))))(rows)
    np.testing.assert_allclose(clipped[0], 3**-0.5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [server_noise(1.0), device_noise(1.0)])
def test_an_exchange_in_which_nothing_is_finite_is_noise(noise, caplog):
    algorithm = with_transforms(FedBiO(0.1), Clip(1.0), noise)
    held = InMemoryDevices([LocalExamples(np.full(3, np.nan), np.full(3, np.nan))] * 5)
    *_, last = run(observed.PROBLEM, algorithm, held, *observed.START, rounds=2)
    assert last.participants.tolist() == list(range(DEVICES))
    assert not last.exclusions.devices
    # The noise of two rounds on each number of y.
    assert np.std(last.y) == pytest.approx(2**0.5 / DEVICES, rel=0.1)
    assert not caplog.records


@pytest.mark.nightly
@pytest.mark.parametrize(
    "engine", [Simulation(chunk_size=2), shards(2)], ids=["chunks", "shards"]
)
def test_every_engine_masks(engine):
    algorithm = with_transforms(PRIVATE, Clip(1.0), device_noise(1.0))
    expected = observed.observe(algorithm, np.nan)
    actual = observed.observe(algorithm, np.nan, engine)
    assert actual.participants == expected.participants
    np.testing.assert_allclose(actual.server.x, expected.server.x, atol=1e-12)
    assert actual.counted[0] == list(range(DEVICES))


def release_of_auto_fedbio(value: float) -> tuple[float, observed.Observation]:
    """Return the deviation of the released z in the attack of the issue."""
    algorithm = with_transforms(
        observed.Observed(AutoFedBiO(rounds=10, local_steps=2)),
        Clip(1.0),
        device_noise(2.0, devices=4),
    )
    seen = observed.observe(algorithm, value)
    return float(np.std(seen.changes["local steps"][-observed.SIZE :])), seen


@pytest.mark.slow
def test_a_bad_example_does_not_change_the_noise_of_auto_fedbio(caplog):
    """Two rounds have ε = 2.94, and the device of the example was missing in both."""
    usual, everyone = release_of_auto_fedbio(1.0)
    bad, participants = release_of_auto_fedbio(np.nan)
    print(f"std of z {usual:.4f} → {bad:.4f}; counted {participants.counted}")
    assert participants.participants == everyone.participants
    assert bad == pytest.approx(usual, rel=0.01)
    # Five devices add the noise of which four would be enough.
    expected = 2.0 * (5 / 4) ** 0.5 / DEVICES / 0.92**0.5
    assert bad == pytest.approx(expected, rel=0.05)
    assert "excluded" not in caplog.text


@pytest.mark.parametrize("size", [1e-45, 1.2e-38, 1e300])
@pytest.mark.parametrize(
    "transform",
    [
        Clip,
        lambda size: ClipEach((1.0, size)),
        lambda size: AdaptiveClip(first_norm=size),
        lambda size: ExampleNoise(size, 0.9),
        lambda size: ExampleNoise(1.0, size),
        GaussianNoise,
        lambda size: DeviceNoise(size, devices=4),
    ],
)
def test_clips_and_noise_are_normal_numbers_in_single_precision(transform, size):
    """XLA rounds noise of 1.1e-38 to zero, and ε was reported as with it."""
    with pytest.raises(ValueError, match=r"1e-18 and at most 1e\+18.* precision"):
        transform(size)


def levels_of(bound: float, keys: int) -> Any:
    """Return what a device sends for a bound of a dishonest server."""

    def loss(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y))

    transforms = AdaptiveClip(), DeviceNoise(2.0, devices=16), FixedPoint(16)
    algorithm = with_transforms(FedBiO(0.1), *transforms)
    problem = BilevelProblem(loss, loss)
    (phase,) = algorithm.phases(problem)
    server, private = algorithm.init(problem, jnp.zeros(()), jnp.zeros(()))
    received, bounds = phase.broadcast(jax.tree.map(jnp.asarray, server))
    downlink = received, jnp.full_like(bounds, bound)
    ones = StoredExamples(jnp.ones(4), jnp.array(0), jnp.array(4))

    def levels(key: Any) -> Any:
        data = StoredData(ones, ones)
        return run_device(phase, downlink, private, data, key).upload.update

    return jax.jit(jax.vmap(levels))(jax.random.split(jax.random.key(0), keys))


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1.2e-38, 0.0, -1.0, 1e38])
def test_a_bound_of_a_dishonest_server_does_not_remove_the_noise(bound):
    """With 1.2e-38 all uploads were equal: multiplier · bound was rounded to zero."""
    with jax.enable_x64(False):
        for levels in jax.tree.leaves(levels_of(bound, keys=8)):
            assert len(set(levels.tolist())) == 8


def test_bounds_stay_in_the_range_of_clips():
    clip = AdaptiveClip(rate=5.0)
    below = clip.next_bounds(jnp.full(1, 2e-18), jnp.ones(1))
    above = clip.next_bounds(jnp.full(1, 5e17), jnp.zeros(1))
    assert (float(below[0]), float(above[0])) == (1e-18, 1e18)


@pytest.mark.slow
def test_a_run_whose_point_is_not_finite_ends():
    """All uploads are masked in such a run, which must not continue silently."""

    def loss(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y))

    # Clips and noise are bounded, so a huge rate of the server makes x infinite.
    huge = with_server_optimiser(FedBiO(1.0), optax.sgd(1e300))
    algorithm = with_transforms(huge, Clip(1e18), server_noise(1e18))
    held = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))] * 2)
    problem = BilevelProblem(loss, loss)
    with pytest.raises(NoUploadsError, match="0 of 2 uploads were accepted"):
        list(run(problem, algorithm, held, np.zeros(2), np.zeros(2), rounds=3))


def test_a_norm_limit_is_refused_under_noise():
    algorithm = with_transforms(FedBiO(0.1), Clip(1.0), server_noise(1.0))
    inputs = observed.PROBLEM, algorithm, observed.devices(1.0), *observed.START
    with pytest.raises(
        ValueError, match="excludes GaussianNoise, since under noise no device"
    ):
        next(run(*inputs, rounds=1, limits=Limits(norm=5.0)))
    private = TransformSettings(clip=1.0, noise=1.0)
    with pytest.raises(SettingError, match=r"norm_limit: excludes transforms\.noise"):
        Experiment(FedBiO(0.1), norm_limit=5.0, transforms=private)
    # A federation has a limit by default, but not under noise.
    experiment = Experiment(FedBiO(0.1), transforms=private)
    assert prepare_for_job(experiment).norm_limit is None
