"""Updates clipped and sent in 8 bits, around every algorithm, on every engine."""

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
from fedbilevel.engines.device_work import work_of_device
from fedbilevel.engines.preparation import canonical
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.federation.sites import enrolled, sites_holding
from tests.federation.sites import federation as served

PROBLEM = quadratic.problem()


def trajectory(algorithm: Any, engine: Any, **others: Any) -> list[np.ndarray]:
    given: dict[str, Any] = {"devices": federation.in_memory(), "rounds": 3, **others}
    devices = given.pop("devices")
    start = federation.START
    given["weights"] = federation.WEIGHTS
    done = run(PROBLEM, algorithm, devices, *start, engine=engine, **given)
    return [np.concatenate([one.x, one.y]) for one in done]


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
    """Look at all that the server would average, directions of openings included."""
    inner = ALGORITHMS[name]()
    algorithm = with_transforms(inner, Clip(1e-9))
    server, private = canonical(algorithm.init(PROBLEM, *canonical(federation.START)))
    data = federation.in_memory().cohort(np.array([0]))
    key = jax.random.key(3)
    phases = (*algorithm.opening(PROBLEM), *algorithm.phases(PROBLEM))
    clipped = 0
    for phase in phases:
        downlink = phase.broadcast(server)
        done = work_of_device(phase, downlink, private, one_device(data), key)
        if phase.reference is None:
            assert done.upload.update == () or name.startswith("two exchanges")
            continue
        clipped += 1
        squares = sum(
            float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(done.upload.update)
        )
        assert squares**0.5 <= 1e-9 * (1 + 1e-6)
        received = phase.received(done.upload, downlink)
        for way in phase.way(received, downlink)[: len(received.update)]:
            for leaf in jax.tree.leaves(way):
                assert float(jnp.max(jnp.abs(leaf), initial=0)) <= 1.1e-9
    assert clipped or name.startswith("two exchanges")


def test_rounding_at_random_keeps_the_mean_and_the_range():
    update = (jnp.array([0.3, -1.0, 0.004, 0.0]), jnp.zeros(2))
    keys = jax.random.split(jax.random.key(0), 20_000)
    quantise = Quantise()
    found = jax.vmap(lambda key: quantise.decode(quantise.encode(update, key)))(keys)
    unit = 1.0 / 127
    for leaf, sent in zip(found, update, strict=True):
        assert float(jnp.max(jnp.abs(leaf - sent[None]))) <= unit
        error = unit / np.sqrt(len(keys))  # of the mean, at most half of this
        np.testing.assert_allclose(jnp.mean(leaf, axis=0), sent, atol=3 * error)


def test_8_bits_are_counted():
    plain, coded = FedBiO(0.1), with_transforms(FedBiO(0.1), Quantise())
    (one,) = run(PROBLEM, plain, federation.in_memory(), *federation.START, rounds=1)
    (other,) = run(PROBLEM, coded, federation.in_memory(), *federation.START, rounds=1)
    assert other.costs.bytes_down == one.costs.bytes_down
    # Each of the three variables has a unit besides, of 8 bytes.
    numbers = one.costs.bytes_up // 8
    assert other.costs.bytes_up == numbers + 3 * 8 * federation.in_memory().device_count


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_what_is_not_finite_stays_so(value):
    update = (jnp.array([1.0, value]),)
    for transform in (Clip(1.0), Quantise()):
        code = transform.encode(update, jax.random.key(0))
        (found,) = transform.decode(code)
        assert not np.all(np.isfinite(found))


def test_a_clip_is_above_zero():
    with pytest.raises(ValueError, match=r"Clip needs norm above 0, but it is 0\.0"):
        Clip(0.0)
