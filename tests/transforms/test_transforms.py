"""Clipped and quantised updates, with every algorithm, on every engine."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    AdaptiveClip,
    CentredClipping,
    Chain,
    Checkpoints,
    Clip,
    DebugSimulation,
    FedBiO,
    Feedback,
    GaussianNoise,
    GeometricMedian,
    Quantise,
    RandomK,
    Run,
    Simulation,
    TopK,
    TrimmedMean,
    optax_optimiser,
    run,
    with_server_optimiser,
    with_transforms,
)
from fedbilevel.data.examples import one_device
from fedbilevel.engines.device_work import run_device
from fedbilevel.engines.preparation import canonical
from fedbilevel.transforms.clip import clip_parts
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.federation.sites import enrolled, sites_holding
from tests.federation.sites import federation as served

PROBLEM = quadratic.problem()


def clipped(rule: Any, update: Any) -> Any:
    return clip_parts(rule, update, rule.first_bounds(len(update)))


@jax.tree_util.register_static
@dataclass(frozen=True)
class NoReference:
    """An algorithm without `Phase.reference`."""

    inner: Any = ALGORITHMS["two exchanges, private state"]()

    def init(self, problem, x, y):
        return self.inner.init(problem, x, y)

    def opening(self, problem):
        return self.phases(problem)

    def phases(self, problem):
        return tuple(
            phase._replace(reference=None) for phase in self.inner.phases(problem)
        )


def trajectory(algorithm: Any, engine: Any, **others: Any) -> list[np.ndarray]:
    options: dict[str, Any] = {
        "devices": federation.in_memory(),
        "rounds": 3,
        "weights": federation.WEIGHTS,
        **others,
    }
    devices = options.pop("devices")
    start = federation.START
    results = run(PROBLEM, algorithm, devices, *start, engine=engine, **options)
    return [np.concatenate([result.x, result.y]) for result in results]


def at_sites(algorithm: Any) -> list[np.ndarray]:
    among = sites_holding(federation.held(), PROBLEM, algorithm)
    return trajectory(algorithm, served(among), devices=enrolled(among))


@pytest.mark.slow
@in_tiers(quick=KINDS[1:2], check=KINDS[1:2])
def test_a_clip_that_nothing_reaches_changes_nothing(name):
    algorithm = ALGORITHMS[name]()
    assert_same(
        trajectory(with_transforms(algorithm, Clip(1e9)), Simulation()),
        trajectory(algorithm, Simulation()),
    )


@in_tiers(quick=(), check=())
def test_every_engine_gives_one_trajectory_of_clipped_and_rounded_updates(name):
    algorithm = with_transforms(ALGORITHMS[name](), Clip(0.3), Quantise())
    expected = trajectory(algorithm, Simulation())
    engines = Simulation(chunk_size=3), shards(2), DebugSimulation()
    for engine in engines:
        assert_same(expected, trajectory(algorithm, engine))
    assert_same(expected, at_sites(algorithm))


@pytest.mark.slow
@in_tiers(quick=KINDS[1:2], check=KINDS)
def test_no_update_goes_past_the_clip(name):
    """Check all uploads that the server averages, including those of openings."""
    inner = ALGORITHMS[name]()
    algorithm = with_transforms(inner, Clip(1e-9))
    server, private = canonical(algorithm.init(PROBLEM, *canonical(federation.START)))
    data = federation.in_memory().cohort(np.array([0]))
    key = jax.random.key(3)
    phases = (*algorithm.opening(PROBLEM), *algorithm.phases(PROBLEM))
    clipped = 0
    for phase in phases:
        downlink = phase.broadcast(server)
        upload = run_device(phase, downlink, private, one_device(data), key).upload
        if phase.reference is None:
            assert upload.update == ()
            continue
        clipped += 1
        squares = sum(
            float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(upload.update)
        )
        assert squares**0.5 <= 1e-9 * (1 + 1e-6)
        received = phase.decode_upload(upload, downlink)
        for deviation in phase.deviations(received, downlink)[: len(received.update)]:
            for leaf in jax.tree.leaves(deviation):
                assert float(jnp.max(jnp.abs(leaf), initial=0)) <= 1.1e-9
    assert clipped


@pytest.mark.slow
def test_8_bits_are_counted():
    plain, coded = FedBiO(0.1), with_transforms(FedBiO(0.1), Quantise())
    (base,) = run(PROBLEM, plain, federation.in_memory(), *federation.START, rounds=1)
    (other,) = run(PROBLEM, coded, federation.in_memory(), *federation.START, rounds=1)
    assert other.costs.bytes_down == base.costs.bytes_down
    # Each of the three variables also has a scale, in double precision.
    numbers = base.costs.bytes_up // 8
    assert other.costs.bytes_up == numbers + 3 * 8 * federation.in_memory().device_count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "dtype", "norm"),
    [
        (1e-17, "float32", 1e-18),  # the smallest clip
        (1e30, "float32", 1.0),  # squares overflow
        (1e200, "float64", 1.0),
        (300.0, "float16", 0.5),
        (2.0, "bfloat16", 1.0),
    ],
)
def test_a_clip_holds_for_tiny_and_huge_numbers(entry, dtype, norm):
    update = (jnp.full(10, entry, dtype), jnp.full((2, 3), entry, dtype))
    (sent, other) = clipped(Clip(norm), update)
    entries = np.concatenate([np.ravel(sent), np.ravel(other)]).astype(np.float64)
    np.testing.assert_allclose(entries, norm / 4, rtol=float(jnp.finfo(dtype).eps))
    assert sent.dtype == dtype


@pytest.mark.slow
def test_what_rounding_lengthens_the_server_clips_again():
    # The smallest entries are half a unit: rounding raises half of them to a unit.
    update = (jnp.concatenate([jnp.ones(1), jnp.full(20_000, 0.5 / 127)]),)
    clip, quantise = Clip(0.5), Quantise(block=30_000)
    sent = quantise.encode(clipped(clip, update), jax.random.key(1))
    (rounded,) = quantise.decode(sent, update)
    (received,) = clipped(clip, (rounded,))
    assert float(jnp.linalg.norm(rounded)) > 0.52
    assert float(jnp.linalg.norm(received)) == pytest.approx(0.5, rel=1e-6)


def test_an_update_without_a_reference_is_not_sent_as_it_is():
    algorithm = with_transforms(NoReference(), Clip(1e-3))
    message = "phase 'descent' sends an update but has no reference"
    with pytest.raises(ValueError, match=message):
        run(PROBLEM, algorithm, federation.in_memory(), *federation.START, rounds=1)


def test_nothing_is_clipped_to_nothing():
    assert clipped(Clip(1.0), ()) == ()


def test_a_clip_is_above_zero():
    with pytest.raises(ValueError, match=r"Clip: norm is 0\.0, .* at least 1e-18"):
        Clip(0.0)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_clip_leaves_what_is_not_finite_visible(value):
    (sent,) = clipped(Clip(1.0), (jnp.array([1.0, value]),))
    assert not np.all(np.isfinite(sent))


COMBINATIONS = {
    "4 bits": (Quantise(bits=4),),
    "clip, feedback": (Clip(0.5), Feedback(Chain(TopK(0.5), Quantise()))),
    "clip each, random": (AdaptiveClip(first_norm=0.3), RandomK(0.5)),
    "noise": (AdaptiveClip(first_norm=0.3), GaussianNoise(0.5)),
    "noise, 8 bits": (Clip(0.3), Quantise(), GaussianNoise(0.5)),
    "trimmed mean": (TrimmedMean(0.2),),
    "clip, geometric median": (Clip(0.5), Quantise(), GeometricMedian()),
    "centred clipping": (CentredClipping(0.2),),
}


# By day `test_pairs` compares pairs.
@pytest.mark.nightly
@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_engine_gives_one_trajectory_of_each_combination(name):
    algorithm = with_transforms(ALGORITHMS["FedBiO"](), *COMBINATIONS[name])
    expected = trajectory(algorithm, Simulation())
    for engine in Simulation(chunk_size=3), shards(2), DebugSimulation():
        assert_same(expected, trajectory(algorithm, engine))
    # A federation draws the server's noise from the operating system.
    if not any(isinstance(each, GaussianNoise) for each in COMBINATIONS[name]):
        assert_same(expected, at_sites(algorithm))


@pytest.mark.slow
def test_a_server_optimiser_comes_before_transforms():
    optimised = with_server_optimiser(
        FedBiO(0.1), optax_optimiser("sgd", learning_rate=1.0)
    )
    clipped = with_transforms(optimised, Clip(0.3))
    plain = with_transforms(FedBiO(0.1), Clip(0.3))
    assert_same(trajectory(clipped, Simulation()), trajectory(plain, Simulation()))
    with pytest.raises(ValueError, match="Add the optimiser first"):
        with_server_optimiser(plain, optax_optimiser("sgd", learning_rate=1.0))


@pytest.mark.slow
def test_feedback_resumes_to_the_same_bits(tmp_path):
    algorithm = with_transforms(FedBiO(0.1), Feedback(Chain(TopK(0.3), Quantise())))
    inputs = PROBLEM, algorithm, federation.in_memory(), *federation.START
    checkpoints = Checkpoints(tmp_path / "run", every=2)
    *_, whole = run(*inputs, rounds=5)
    list(run(*inputs, rounds=3, checkpoints=checkpoints))
    *_, resumed = Run(*inputs, rounds=5).resume(checkpoints)
    for one, other in zip(
        jax.tree.leaves((whole.server, whole.private)),
        jax.tree.leaves((resumed.server, resumed.private)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
