"""The secret of a private run: what follows from it, and who stores it."""

import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    CheckpointError,
    Checkpoints,
    Clip,
    DebugSimulation,
    DeviceNoise,
    ExampleNoise,
    FedBiO,
    GaussianNoise,
    InMemoryDevices,
    LocalExamples,
    Run,
    Sharded,
    Simulation,
    UniformSample,
    run,
    with_transforms,
)
from fedbilevel.algorithms.protocol import Upload
from fedbilevel.engines import noise_secret
from fedbilevel.engines.mean import NOISE
from fedbilevel.engines.noise_secret import FILE
from fedbilevel.engines.protocol import Moment, server_key
from fedbilevel.engines.run import prepare
from fedbilevel.transforms.noise import standard_normals
from tests.algorithms.table import at_night

SIZE = 40


def loss(x, y, batch):
    return jnp.mean((y - x) ** 2) + 0 * jnp.mean(batch)


def rows(device):
    return np.full(8, device, float)


PROBLEM = BilevelProblem(loss, lambda x, y, batch: loss(x, y, batch) + jnp.sum(y**2))
START = np.zeros(SIZE), np.zeros(SIZE)


def devices():
    return InMemoryDevices([LocalExamples(rows(k), rows(k + 0.5)) for k in range(6)])


def private(noise):
    clip = () if isinstance(noise, ExampleNoise) else (Clip(1.0),)
    return with_transforms(FedBiO(0.1, batch_size=2), *clip, noise)


def resumed(*inputs, checkpoints, **options):
    return Run(*inputs, **options).resume(checkpoints)


def rounds(noise, number=3, function=run, **options):
    arguments = PROBLEM, private(noise), devices(), *START
    return list(function(*arguments, rounds=number, **options))


NOISES = [
    GaussianNoise(1.0),
    DeviceNoise(1.0, devices=6),
    ExampleNoise(clip=1.0, multiplier=1.0),
]


@pytest.mark.nightly
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_noise_is_new_in_each_run_with_one_seed(noise):
    first, second = (rounds(noise, 1, seed=7)[-1] for _ in range(2))
    assert np.all(first.y != second.y)
    assert first.epsilon == second.epsilon > 0


@pytest.mark.slow
def test_noise_from_the_seed_repeats_and_has_no_epsilon():
    noise = GaussianNoise(1.0, from_seed=True)
    first, second = (rounds(noise, 2, seed=7)[-1] for _ in range(2))
    assert np.array_equal(first.y, second.y)
    assert first.epsilon is None


def correlation_with_seed(noise, seed):
    """The correlation of published changes with the noise of a seed, as an attacker
    computes it: x, y and z move by the noised mean."""
    changes, numbers, before = [], [], START[0]
    for result in rounds(noise, 20, seed=seed):
        changes.append(np.asarray(result.y - before))
        before = result.y
        key = server_key(jax.random.key(seed), Moment(result.number, 0))
        upload = jax.eval_shape(lambda: (jnp.zeros(SIZE),) * 3)
        normals = standard_normals(Upload(upload), jax.random.fold_in(key, NOISE))
        numbers.append(np.asarray(normals.update[1]))
    return np.corrcoef(np.ravel(changes), np.ravel(numbers))[0, 1]


@pytest.mark.slow
def test_a_search_of_seeds_finds_noise_of_the_seed_alone():
    # Independent noise has a standard deviation of 1 / √800 = 0.035.
    assert correlation_with_seed(GaussianNoise(5.0, from_seed=True), 11) > 0.7
    assert abs(correlation_with_seed(GaussianNoise(5.0), 11)) < 0.15


@pytest.mark.slow
def test_participants_follow_from_the_secret():
    sample = UniformSample(3)
    first, second = (
        [tuple(r.participants) for r in rounds(NOISES[0], 8, participation=sample)]
        for _ in range(2)
    )
    assert first != second
    seeded = [
        tuple(r.participants)
        for r in rounds(GaussianNoise(1.0, from_seed=True), 8, participation=sample)
    ]
    assert seeded == [tuple(sample(0, number, 6)) for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [Simulation(2), *at_night(Sharded(), DebugSimulation())]
)
def test_engines_have_one_trajectory_with_one_secret(engine, monkeypatch):
    monkeypatch.setattr(noise_secret, "new_secret", lambda: bytes(range(32)))
    expected, result = rounds(NOISES[0], 2)[-1], rounds(NOISES[0], 2, engine=engine)[-1]
    np.testing.assert_allclose(result.y, expected.y, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_resumed_run_repeats_its_noise(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=2)
    whole = rounds(NOISES[0], 4, checkpoints=checkpoints)[-1]
    shutil.rmtree(tmp_path / "checkpoints" / "round_4")
    again = rounds(NOISES[0], 4, resumed, checkpoints=checkpoints)[-1]
    assert np.array_equal(again.y, whole.y)
    # A run that was killed before its first checkpoint has published rounds, too.
    shutil.rmtree(tmp_path / "checkpoints" / "round_4")
    shutil.rmtree(tmp_path / "checkpoints" / "round_2")
    again = rounds(NOISES[0], 4, resumed, checkpoints=checkpoints)[-1]
    assert np.array_equal(again.y, whole.y)


def test_other_settings_with_one_secret_have_other_noise():
    # The difference of two such runs must not be free of noise.
    inputs = PROBLEM, private(NOISES[0]), devices(), *START
    prepared = prepare(Run(*inputs, rounds=1))
    keys = [
        jax.random.key_data(
            noise_secret.with_secret(prepared, bytes(32), {"seed": seed}).job.key
        )
        for seed in (0, 1)
    ]
    assert np.all(keys[0] != keys[1])


def stored(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=1)
    rounds(NOISES[0], 1, checkpoints=checkpoints)
    return checkpoints, tmp_path / "checkpoints" / FILE


def test_only_the_user_can_read_the_secret(tmp_path):
    checkpoints, file = stored(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(bytes.fromhex(file.read_text())) == 32
    file.chmod(0o640)
    with pytest.raises(CheckpointError, match=r"can be read by other users.*chmod 600"):
        rounds(NOISES[0], 2, resumed, checkpoints=checkpoints)


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "not hexadecimal", "00ff"])
def test_a_missing_or_damaged_secret_is_an_error(tmp_path, content):
    checkpoints, file = stored(tmp_path)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(
        CheckpointError, match=r"(is missing|damaged).*Restore the file"
    ):
        rounds(NOISES[0], 2, resumed, checkpoints=checkpoints)


def test_another_secret_does_not_continue_a_run(tmp_path):
    checkpoints, file = stored(tmp_path)
    file.write_text("00" * 32)
    with pytest.raises(CheckpointError, match="is not the secret with which the run"):
        rounds(NOISES[0], 2, resumed, checkpoints=checkpoints)


@pytest.mark.slow
def test_runs_without_noise_have_no_secret(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    rounds(GaussianNoise(1.0, from_seed=True), 1, checkpoints=checkpoints)
    assert not (tmp_path / "checkpoints" / FILE).exists()
