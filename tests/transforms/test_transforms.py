"""Clipped and quantised updates, with every algorithm, on every engine."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    Clip,
    DebugSimulation,
    FedBiO,
    Quantise,
    Simulation,
    run,
    with_transforms,
)
from fedbilevel.data.examples import one_device
from fedbilevel.engines.device_work import run_device
from fedbilevel.engines.preparation import canonical
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.federation.sites import enrolled, sites_holding
from tests.federation.sites import federation as served

PROBLEM = quadratic.problem()


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
    options: dict[str, Any] = {"devices": federation.in_memory(), "rounds": 3, **others}
    devices = options.pop("devices")
    start = federation.START
    options["weights"] = federation.WEIGHTS
    results = run(PROBLEM, algorithm, devices, *start, engine=engine, **options)
    return [np.concatenate([result.x, result.y]) for result in results]


def at_sites(algorithm: Any) -> list[np.ndarray]:
    among = sites_holding(federation.held(), PROBLEM, algorithm)
    return trajectory(algorithm, served(among), devices=enrolled(among))


@in_tiers(quick=KINDS[1:2], check=KINDS[1:2])
def test_a_clip_that_nothing_reaches_changes_nothing(name):
    algorithm = ALGORITHMS[name]()
    assert_same(
        trajectory(with_transforms(algorithm, Clip(1e9)), Simulation()),
        trajectory(algorithm, Simulation()),
    )


@in_tiers(quick=(), check=KINDS[-1:])
def test_every_engine_gives_one_trajectory_of_clipped_and_rounded_updates(name):
    algorithm = with_transforms(ALGORITHMS[name](), Clip(0.3), Quantise())
    expected = trajectory(algorithm, Simulation())
    engines = Simulation(chunk_size=3), shards(2), DebugSimulation()
    for engine in engines:
        assert_same(expected, trajectory(algorithm, engine))
    assert_same(expected, at_sites(algorithm))


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


def test_rounding_at_random_keeps_the_mean_and_the_range():
    update = (jnp.array([0.3, -1.0, 0.004, 0.0]), jnp.zeros(2))
    keys = jax.random.split(jax.random.key(0), 20_000)
    quantise = Quantise()
    decoded = jax.vmap(
        lambda key: quantise.decode(quantise.encode(update, key), update)
    )(keys)
    unit = 1.0 / 127
    for leaf, sent in zip(decoded, update, strict=True):
        assert float(jnp.max(jnp.abs(leaf - sent[None]))) <= unit
        error = unit / np.sqrt(len(keys))  # twice the largest error of the mean
        np.testing.assert_allclose(jnp.mean(leaf, axis=0), sent, atol=3 * error)


def test_8_bits_are_counted():
    plain, coded = FedBiO(0.1), with_transforms(FedBiO(0.1), Quantise())
    (base,) = run(PROBLEM, plain, federation.in_memory(), *federation.START, rounds=1)
    (other,) = run(PROBLEM, coded, federation.in_memory(), *federation.START, rounds=1)
    assert other.costs.bytes_down == base.costs.bytes_down
    # Each of the three variables also has a unit of 8 bytes.
    numbers = base.costs.bytes_up // 8
    assert other.costs.bytes_up == numbers + 3 * 8 * federation.in_memory().device_count


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_what_is_not_finite_stays_so(value):
    update = (jnp.array([1.0, value]),)
    for transform in (Clip(1.0), Quantise()):
        code = transform.encode(update, jax.random.key(0))
        (decoded,) = transform.decode(code)
        assert not np.all(np.isfinite(decoded))


@pytest.mark.parametrize(
    ("entry", "dtype", "norm"),
    [
        (1e-30, "float32", 1e-32),  # squares underflow
        (1e30, "float32", 1.0),  # squares overflow
        (1e200, "float64", 1.0),
        (300.0, "float16", 0.5),
        (2.0, "bfloat16", 1.0),
    ],
)
def test_a_clip_holds_for_tiny_and_huge_numbers(entry, dtype, norm):
    update = (jnp.full(10, entry, dtype), jnp.full((2, 3), entry, dtype))
    clip = Clip(norm)
    (sent, other) = clip.encode(update, jax.random.key(0))
    entries = np.concatenate([np.ravel(sent), np.ravel(other)]).astype(np.float64)
    np.testing.assert_allclose(entries, norm / 4, rtol=float(jnp.finfo(dtype).eps))
    assert sent.dtype == dtype


def test_what_rounding_lengthens_the_server_clips_again():
    # The smallest entries are half a unit: rounding raises half of them to a unit.
    update = (jnp.concatenate([jnp.ones(1), jnp.full(20_000, 0.5 / 127)]),)
    clip, quantise = Clip(0.5), Quantise()
    sent = quantise.encode(clip.encode(update, jax.random.key(0)), jax.random.key(1))
    (rounded,) = quantise.decode(sent)
    (received,) = clip.decode((rounded,))
    assert float(jnp.linalg.norm(rounded)) > 0.52
    assert float(jnp.linalg.norm(received)) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("after", [Clip(1.0), Quantise()])
def test_a_transform_of_numbers_refuses_what_another_made_of_them(after):
    algorithm = with_transforms(FedBiO(0.1), Quantise(), after)
    name = type(after).__name__
    message = f"{name}: an array has dtype int8, expected floating point"
    with pytest.raises(TypeError, match=message):
        list(
            run(
                PROBLEM,
                algorithm,
                federation.in_memory(),
                *federation.START,
                rounds=1,
            )
        )


def test_an_update_without_a_reference_is_not_sent_as_it_is():
    algorithm = with_transforms(NoReference(), Clip(1e-3))
    message = "phase 'descent' sends an update but has no reference"
    with pytest.raises(ValueError, match=message):
        run(PROBLEM, algorithm, federation.in_memory(), *federation.START, rounds=1)


def test_nothing_is_clipped_to_nothing():
    assert Clip(1.0).encode((), jax.random.key(0)) == ()


def test_a_clip_is_above_zero():
    with pytest.raises(ValueError, match=r"Clip: norm is 0\.0, .* above 0"):
        Clip(0.0)
