"""The noise of differential privacy: its size, its seed, and what it protects.

`test_canary` bounds ε from below by experiments, left to the night.
"""

import logging
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

from fedbilevel import (
    AdaptiveClip,
    AutoFedBiO,
    BilevelProblem,
    Checkpoints,
    Clip,
    ClipEach,
    DebugSimulation,
    DeviceNoise,
    ExampleNoise,
    FedBiO,
    Feedback,
    FullParticipation,
    GaussianNoise,
    InMemoryDevices,
    Limits,
    LocalBSGM,
    LocalExamples,
    NeumannSeries,
    NoUploadsError,
    Quantise,
    Run,
    Simulation,
    UniformSample,
    WarmStart,
    run,
    sweep,
    with_transforms,
)
from fedbilevel.algorithms import register
from fedbilevel.data.examples import one_device
from fedbilevel.engines.run import prepare
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.privacy import (
    Everyone,
    GaussianRelease,
    UnknownSampling,
    WithoutReplacement,
    spent,
)
from fedbilevel.transforms.noise import HIGHEST, LOWEST, TAIL, standard_normals
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, at_night
from tests.engines import federation
from tests.engines.test_equality import shards
from tests.transforms import noisy

pytestmark = pytest.mark.slow


NOISE = 2.0
CLIP = 0.7
KEY = jax.random.key(0)


def assert_deviation(numbers: Any, deviation: float) -> None:
    """Check a standard deviation by the 99 % interval of the sample variance."""
    count = len(numbers)
    low, high = chi2.ppf([0.005, 0.995], count) * deviation**2
    assert low <= float(np.sum(np.square(numbers))) <= high


def engine(name: str) -> Any:
    return {
        "simulation": Simulation(),
        "chunks": Simulation(chunk_size=3),
        "sharded": shards(2),
        "debug": DebugSimulation(),
    }[name]


@pytest.mark.parametrize(
    "name", ["chunks", *at_night("simulation", "sharded", "debug")]
)
def test_the_noise_of_the_server_has_its_variance(name):
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    numbers = noisy.noise_of_round(algorithm, engine(name))
    # The sum of four updates has noise of m · C, their mean a fourth of it.
    assert_deviation(numbers, NOISE * CLIP / noisy.DEVICES)


@pytest.mark.parametrize("name", ["simulation", *at_night("sharded")])
def test_the_noise_of_devices_adds_up_to_that_of_the_server(name):
    noise = DeviceNoise(NOISE, devices=noisy.DEVICES)
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), noise)
    numbers = noisy.noise_of_round(algorithm, engine(name))
    assert_deviation(numbers, NOISE * CLIP / noisy.DEVICES)


def test_each_variable_has_noise_for_its_own_bound():
    clip = ClipEach((0.1, 1.0, 10.0))
    algorithm = with_transforms(noisy.plain(), clip, GaussianNoise(NOISE))
    numbers = noisy.noise_of_round(algorithm, Simulation())
    for part, bound in zip(np.split(numbers, 3), clip.norms, strict=True):
        assert_deviation(part, NOISE * bound * np.sqrt(3) / noisy.DEVICES)


def test_weights_raise_the_noise_to_the_largest_share():
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    weights = np.array([5.0, 1.0, 1.0, 1.0])
    numbers = noisy.noise_of_round(algorithm, Simulation(), weights=weights)
    assert_deviation(numbers, NOISE * CLIP * 5 / 8)


@pytest.mark.nightly
def test_the_tails_of_the_noise_do_not_end():
    (noise,) = standard_normals((jnp.zeros(2**23, np.float32),), jax.random.key(0))
    noise = np.asarray(noise, np.float64)
    for side in (noise, -noise):
        outermost = norm.sf(side[side > HIGHEST + 0.01])
        # `jax.random.normal` has 250 values there, with a largest one.
        assert len(np.unique(outermost)) == len(outermost)
        assert 200 < len(outermost) < 300
        assert kstest(outermost / norm.sf(HIGHEST + 0.01), "uniform").pvalue > 1e-3


@pytest.mark.nightly
def test_the_tails_have_as_many_values_as_assumed():
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    fractions = jnp.arange(2**23, dtype=jnp.float32) * jnp.float32(2.0**-23)
    uniform = jnp.maximum(lowest, fractions * (1 - lowest) + lowest)
    values = jnp.float32(2**0.5) * jax.lax.erf_inv(uniform)
    assert int(jnp.sum(values > HIGHEST)) == TAIL * 2**23
    assert int(jnp.sum(values < LOWEST)) == TAIL * 2**23
    # These are the values of JAX.
    drawn = jax.random.normal(jax.random.key(0), (2**22,), jnp.float32)
    outermost = np.asarray(drawn[jnp.abs(drawn) > 4.5])[:5]
    distances = np.abs(np.asarray(values)[:, None] - outermost).min(axis=0)
    assert distances.max() < 1e-5


def test_noise_from_the_seed_follows_from_the_seed():
    noise = GaussianNoise(NOISE, from_seed=True)
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), noise)
    first, again = (noisy.noise_of_round(algorithm, Simulation()) for _ in range(2))
    other = noisy.noise_of_round(algorithm, Simulation(), seed=1)
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


def test_a_federation_takes_noise_from_the_operating_system():
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    draws = []
    for _ in range(2):
        engine, devices = noisy.federation(algorithm)
        draws.append(noisy.noise_of_round(algorithm, engine, devices=devices))
        assert engine.noised_means == 1
        assert_deviation(draws[-1], NOISE * CLIP / noisy.DEVICES)
    assert not np.any(draws[0] == draws[1])


def test_a_device_that_does_not_count_is_a_zero_update():
    """The divisor of the mean must not depend on the data."""

    def loss(x, y, batch):
        return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y))

    problem = BilevelProblem(loss, loss)
    bad = LocalExamples(np.full(3, np.nan), np.full(3, np.nan))
    devices = InMemoryDevices([*noisy.HELD[:3], bad])
    algorithm = with_transforms(noisy.plain(), Clip(1.0), GaussianNoise(1e-9))
    (last,) = run(problem, algorithm, devices, *noisy.START, rounds=1)
    moved = np.concatenate([last.x, last.y, last.server.adjoint])
    # Three of four unit updates, divided by four and not by three.
    assert np.linalg.norm(moved) == pytest.approx(0.75, rel=1e-5)
    assert last.reports[0].info == {}
    assert not np.any([float(np.max(leaf)) for leaf in last.reports[0].dispersion[0]])


@pytest.mark.parametrize(
    ("participation", "sampling"),
    [
        (FullParticipation(), Everyone()),
        (UniformSample(2), WithoutReplacement(2, noisy.DEVICES)),
        (lambda seed, number, count: np.arange(2), UnknownSampling()),
    ],
)
def test_every_round_reports_its_epsilon(participation, sampling):
    noise = GaussianNoise(NOISE, delta=1e-6)
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), noise)
    rounds = run(
        noisy.PROBLEM,
        algorithm,
        noisy.devices(),
        *noisy.START,
        rounds=3,
        participation=participation,
    )
    release = GaussianRelease(NOISE, sampling)
    for number, result in enumerate(rounds):
        expected = spent({release: number + 1}, 1e-6)
        assert result.epsilon == pytest.approx(expected, rel=1e-12)


@register
@dataclass(frozen=True)
class WithOpening:
    """An algorithm around another, with a warm start."""

    algorithm: Any

    def init(self, problem, x, y):
        return self.algorithm.init(problem, x, y)

    def opening(self, problem):
        warm_start = WarmStart(0.1, exchanges=2).phases(problem)
        return (*warm_start, *self.algorithm.phases(problem))

    def phases(self, problem):
        return self.algorithm.phases(problem)


@pytest.mark.parametrize(
    "noise", [(Clip(1.0), GaussianNoise(9.0)), (ExampleNoise(1.0, 9.0),)]
)
def test_exchanges_around_the_noise_are_refused(noise):
    inner = FedBiO(0.1, batch_size=2)
    algorithm = WithOpening(with_transforms(inner, *noise))
    inputs = noisy.devices(), *noisy.START
    with pytest.raises(ValueError, match=r"is added around with_transforms"):
        list(run(noisy.PROBLEM, algorithm, *inputs, rounds=1))
    within = with_transforms(WithOpening(inner), *noise)
    (last,) = run(noisy.PROBLEM, within, *inputs, rounds=1)
    assert last.epsilon is not None


def test_a_sample_with_uneven_weights_is_not_amplified():
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    inputs = noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START
    (last,) = run(
        *inputs,
        rounds=1,
        participation=UniformSample(2),
        weights=np.array([1.0, 2.0, 1.0, 1.0]),
    )
    assert last.epsilon == pytest.approx(spent({GaussianRelease(NOISE): 1}, 1e-5))


@pytest.mark.nightly
def test_exchanges_of_a_round_are_one_release_of_its_sample():
    inner = LocalBSGM(0.1, NeumannSeries(terms=1, scale=0.1))
    algorithm = with_transforms(inner, ClipEach((1.0,) * 4), GaussianNoise(NOISE))
    results = list(
        run(noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START, rounds=2)
    )
    assert results[-1].epsilon == pytest.approx(
        spent({GaussianRelease(NOISE): 2}, 1e-5), rel=1e-12
    )


def test_a_run_ends_within_its_budget(tmp_path, caplog):
    budget = spent({GaussianRelease(NOISE): 3}, 1e-5) * 1.001
    algorithm = with_transforms(
        noisy.plain(), Clip(CLIP), GaussianNoise(NOISE, epsilon=budget)
    )
    inputs = noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START
    checkpoints = Checkpoints(tmp_path / "run", every=1)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        results = list(run(*inputs, rounds=9, checkpoints=checkpoints))
    assert [result.number for result in results] == [0, 1, 2]
    assert results[-1].is_last
    assert (results[-1].epsilon or 0.0) <= budget
    assert "allows 3 of 9 rounds" in caplog.text
    (again,) = Run(*inputs, rounds=20).resume(checkpoints)
    assert (again.number, again.epsilon) == (2, results[-1].epsilon)


def test_a_budget_for_no_round_is_refused():
    algorithm = with_transforms(
        noisy.plain(), Clip(CLIP), GaussianNoise(0.1, epsilon=0.5)
    )
    inputs = noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START
    with pytest.raises(ValueError, match=r"epsilon=0\.5 allows no round: the first"):
        next(run(*inputs, rounds=1))


@pytest.mark.nightly
def test_a_grid_of_noise_is_one_sweep():
    algorithms = [
        with_transforms(FedBiO(0.1), Clip(CLIP), GaussianNoise(noise))
        for noise in (1e-6, 1.0)
    ]
    result = sweep(
        Run(noisy.PROBLEM, algorithms[0], noisy.devices(), *noisy.START, rounds=1),
        algorithms,
        seeds=[0],
        measure=lambda server: server.x,
    )
    quiet, loud = result.measurements[:, 0, 0]
    np.testing.assert_allclose(loud, 1e6 * quiet, rtol=1e-6)


def test_an_adaptive_bound_follows_the_quantile():
    """Devices with updates of different lengths; the bound settles between them."""

    def loss(x, y, batch):
        return jnp.mean(batch) * (x + y)

    problem = BilevelProblem(loss, loss)
    lengths = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    held = [LocalExamples(np.full(1, size), np.full(1, size)) for size in lengths]
    clip = AdaptiveClip(quantile=0.5, first_norm=0.01, rate=0.3)
    algorithm = with_transforms(FedBiO(1.0, adjoint_rate=1e-9), clip)
    *_, last = run(problem, algorithm, InMemoryDevices(held), 0.0, 0.0, rounds=60)
    x_bound, y_bound, _ = np.asarray(last.server.bounds["local steps"])
    assert 2.0 <= x_bound <= 4.0 * 1.2
    assert 2.0 <= y_bound <= 4.0 * 1.2


@pytest.mark.nightly
@pytest.mark.parametrize(
    "noise",
    [GaussianNoise(1e-6), *at_night(DeviceNoise(1e-6, devices=4))],
    ids=["server", "own"],
)
def test_auto_with_little_noise_is_near_auto_with_votes(noise):
    """Values beside the update are bounded; the run must still reach the solution."""

    def upper(x, y, batch):
        return jnp.mean((y - batch) ** 2)

    def lower(x, y, batch):
        return 300.0 * jnp.mean((y - x * batch) ** 2)

    problem = BilevelProblem(upper, lower)
    algorithm = with_transforms(AutoFedBiO(rounds=200), Clip(100.0), noise)
    *_, last = run(problem, algorithm, noisy.devices(), 2.0, 0.0, rounds=200)
    assert abs(float(last.x) - 1.0) < 0.02
    assert not any(last.server.notices.values())


def test_values_without_a_bound_are_refused_under_noise():
    inner = ALGORITHMS["ShroFBO, unequal steps"]()
    algorithm = with_transforms(inner, Clip(1.0), GaussianNoise(1.0))
    inputs = quadratic.problem(), algorithm, federation.in_memory(), *federation.START
    message = "values beside its update, for which GaussianNoise needs a bound"
    with pytest.raises(ValueError, match=message):
        next(run(*inputs, rounds=1))


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ((GaussianNoise(1.0),), "GaussianNoise needs Clip, ClipEach or AdaptiveClip"),
        ((GaussianNoise(1.0), Clip(1.0)), "Clip comes after GaussianNoise"),
        ((Quantise(), Clip(1.0)), "Clip comes after Quantise"),
        ((Clip(1.0), Clip(2.0)), "Clip excludes Clip"),
        (
            (Clip(1.0), DeviceNoise(1.0, 4), GaussianNoise(1.0)),
            "DeviceNoise excludes GaussianNoise",
        ),
        (
            (Clip(1.0), DeviceNoise(1.0, 4), Quantise()),
            "DeviceNoise excludes Quantise",
        ),
        ((Clip,), "Clip is a class"),
        (("clip",), "'clip' is no transform"),
    ],
)
def test_transforms_that_do_not_fit_together_are_refused(transforms, message):
    with pytest.raises((ValueError, TypeError), match=message):
        with_transforms(FedBiO(0.1), *transforms)


@pytest.mark.nightly
def test_a_private_run_does_not_report_the_spread_of_updates():
    def loss(x, y, batch):
        return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y))

    problem = BilevelProblem(loss, loss)
    held = [LocalExamples(np.full(3, size), np.full(3, size)) for size in (1.0, 2.0)]
    inputs = InMemoryDevices(held), *noisy.START
    spreads = []
    for transforms in [(Clip(1e9),), (Clip(1e9), GaussianNoise(1e-9))]:
        algorithm = with_transforms(noisy.plain(), *transforms)
        (last,) = run(problem, algorithm, *inputs, rounds=1)
        spreads.append(float(last.reports[0].dispersion.update[1]))
    assert spreads[0] > 0
    assert spreads[1] == 0


def test_noise_of_devices_needs_enough_devices_of_equal_weight():
    def start(devices: int, **others: Any) -> Any:
        algorithm = with_transforms(
            noisy.plain(), Clip(1.0), DeviceNoise(1.0, devices=devices)
        )
        held = others.pop("devices", None) or noisy.devices()
        if others.pop("federation", False):
            others["engine"], held = noisy.federation(algorithm)
        inputs = noisy.PROBLEM, algorithm, held, *noisy.START
        return list(run(*inputs, rounds=2, **others))

    with pytest.raises(ValueError, match="the number of participants is 4"):
        start(5)
    with pytest.raises(ValueError, match="the number of participants is 2"):
        start(4, participation=UniformSample(2))
    with pytest.raises(ValueError, match="needs equal weights"):
        start(4, weights=np.array([1.0, 2.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="the server of this federation sees each"):
        start(4, federation=True)

    def fewer(seed: int, number: int, count: int) -> Any:
        return np.arange(4 - number)

    with pytest.raises(NoUploadsError, match="3 of 4 uploads of DeviceNoise"):
        start(4, participation=fewer)


def test_a_mean_with_too_little_noise_is_not_published():
    algorithm = with_transforms(noisy.plain(), Clip(1.0), DeviceNoise(1.0, devices=4))
    results = run(
        noisy.PROBLEM,
        algorithm,
        noisy.devices(),
        *noisy.START,
        rounds=2,
        participation=lambda seed, number, count: np.arange(4 - number),
    )
    seen: list[Any] = []
    with pytest.raises(NoUploadsError):
        seen.extend(results)
    assert not seen or np.all(np.isfinite(seen[0].x))
    assert all(np.all(np.isnan(result.x)) for result in seen[1:])


def test_noise_of_devices_hides_whether_an_update_is_finite():
    def loss(x, y, batch):
        return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y))

    bad = LocalExamples(np.full(3, np.nan), np.full(3, np.nan))
    devices = InMemoryDevices([*noisy.HELD[:3], bad])
    algorithm = with_transforms(noisy.plain(), Clip(1.0), DeviceNoise(1e-9, devices=4))
    inputs = BilevelProblem(loss, loss), algorithm, devices, *noisy.START
    (last,) = run(*inputs, rounds=1)
    assert last.participants.tolist() == [0, 1, 2, 3]
    moved = np.concatenate([last.x, last.y, last.server.adjoint])
    assert np.linalg.norm(moved) == pytest.approx(0.75, rel=1e-5)


def test_a_distance_limit_is_refused_under_noise():
    algorithm = with_transforms(noisy.plain(), Clip(1.0), GaussianNoise(1.0))
    inputs = noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START
    with pytest.raises(ValueError, match="one device must not decide"):
        next(run(*inputs, rounds=1, limits=Limits(distance=10.0)))


def test_states_of_devices_end_amplification():
    codes = Feedback(Quantise())
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), codes, GaussianNoise(NOISE))
    inputs = noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START
    (last,) = run(*inputs, rounds=1, participation=UniformSample(2))
    assert last.epsilon == pytest.approx(spent({GaussianRelease(NOISE): 1}, 1e-5))


def test_a_clip_holds_in_half_precision():
    """The sum of a large point and a short change would round beyond the bound."""
    size = 50

    def loss(x, y, batch):
        return jnp.mean(batch).astype(y.dtype) * jnp.sum(y) + 0.0 * jnp.sum(x)

    ones = np.ones(1, np.float32)
    devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
    algorithm = with_transforms(FedBiO(1.0), Clip(0.5), GaussianNoise(1e-9))
    x, y = jnp.zeros(1, jnp.bfloat16), jnp.ones(size, jnp.bfloat16)
    problem = BilevelProblem(loss, loss)
    prepared = prepare(Run(problem, algorithm, devices, x, y, rounds=1))
    phase = algorithm.phases(problem)[0]
    downlink = phase.broadcast(prepared.state.server)
    upload, _, _ = phase.finish(
        phase.step(
            phase.start(downlink, (), one_device(devices.cohort(np.array([0]))), KEY),
            one_device(devices.cohort(np.array([0]))),
            KEY,
        ),
        downlink,
        KEY,
    )
    received = phase.decode_upload(upload, downlink)
    squares = [np.sum(np.square(np.float64(leaf))) for leaf in received.update]
    assert np.sqrt(sum(squares)) == pytest.approx(0.5, rel=1e-6)


def test_many_runs_have_no_budget():
    algorithm = with_transforms(
        noisy.plain(), Clip(CLIP), GaussianNoise(NOISE, epsilon=4.0)
    )
    whole = Run(noisy.PROBLEM, algorithm, noisy.devices(), *noisy.START, rounds=1)
    with pytest.raises(ValueError, match="many runs on the same data spend more"):
        sweep(whole, [algorithm], seeds=[0], measure=lambda server: server.x)


class Around:
    """An engine around another one, as in docs/extending/engine.md."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside
        self.example_device, self.begin = inside.example_device, inside.begin
        self.private_states, self.exchange = inside.private_states, inside.exchange


class AroundPrivately(Around):
    """An engine that returns what ε depends on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def test_an_engine_around_a_federation_states_what_epsilon_depends_on():
    """Otherwise ε would be that of a secret sample, without repeated noise."""
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    federation, enrolled = noisy.federation(algorithm)
    inputs = noisy.PROBLEM, algorithm, enrolled, *noisy.START
    sample: Any = {"rounds": 1, "participation": UniformSample(2)}
    with pytest.raises(ValueError, match="Around does not state what ε depends on"):
        next(run(*inputs, **sample, engine=Around(federation)))
    (last,) = run(*inputs, **sample, engine=AroundPrivately(federation))
    assert last.epsilon == pytest.approx(spent({GaussianRelease(NOISE): 1}, 1e-5))


def test_a_resumed_federation_counts_repeated_noise(tmp_path):
    """A server that loses rounds computes their means again, with other noise."""
    algorithm = with_transforms(noisy.plain(), Clip(CLIP), GaussianNoise(NOISE))
    checkpoints = Checkpoints(tmp_path / "run", every=2)

    def engine() -> Any:
        return noisy.federation(algorithm, ReleaseLog(tmp_path / "releases.txt"))

    first, enrolled = engine()
    inputs = noisy.PROBLEM, algorithm, enrolled, *noisy.START
    whole = Run(*inputs, rounds=5, engine=first)
    rounds = whole.start(checkpoints, progress=True)
    while next(rounds).number < 2:
        pass
    # A run that is killed does not write a checkpoint of its last round.
    with pytest.raises(RuntimeError, match="killed"):
        rounds.throw(RuntimeError("killed"))
    second, _ = engine()
    assert second.noised_means == 3
    *_, last = Run(*inputs, rounds=5, engine=second).resume(checkpoints)
    assert last.repeated_means == 1
    assert last.epsilon == pytest.approx(spent({GaussianRelease(NOISE): 6}, 1e-5))
