"""Coded downloads: exact server states, counted bytes, and the distance from x*."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    AdaptiveClip,
    Chain,
    Checkpoints,
    Clip,
    DebugSimulation,
    Download,
    FedBiO,
    Feedback,
    Phase,
    Quantise,
    RandomK,
    Run,
    Simulation,
    TopK,
    TrimmedMean,
    UniformSample,
    Upload,
    predict_costs,
    run,
    with_transforms,
)
from fedbilevel.federation.messages import Task
from fedbilevel.mathematics import tree
from tests.algorithms.table import ALGORITHMS, at_night, by_day, in_tiers
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.federation.sites import enrolled, sites_holding
from tests.federation.sites import federation as served
from tests.transforms.download_distances import distances
from tests.transforms.test_transforms import PROBLEM, at_sites, trajectory

pytestmark = pytest.mark.slow

SMALL = Download(Quantise(bits=8), smallest=2)
"""A code of the few entries of the quadratic's x and y."""


LARGEST = Feedback(TopK(0.5))


def inputs() -> tuple[Any, ...]:
    return federation.in_memory(), *federation.START


def seed_of(*words: int) -> Any:
    return jnp.array(words, jnp.uint32)


def test_integers_scalars_and_small_arrays_are_sent_unchanged():
    downlink = {
        "count": jnp.arange(100),
        "key": jax.random.key(1),
        "rate": jnp.float32(0.123456789),
        "three": jnp.linspace(0.1, 0.3, 3),
        "x": jnp.linspace(-1.0, 1.0, 16).reshape(4, 4),
        "half": jnp.linspace(-1.0, 1.0, 20, dtype=jnp.bfloat16),
    }
    download = Download()
    sent = download.encode(downlink, seed_of(1, 2))
    received = download.decode(sent)
    for name in ("count", "key", "rate", "three"):
        assert received[name].dtype == downlink[name].dtype
        assert bool(jnp.all(received[name] == downlink[name]))
    for name, unit in (("x", 1 / 127), ("half", 1 / 127 + 2.0**-8)):
        assert received[name].dtype == downlink[name].dtype
        errors = received[name].astype(float) - downlink[name].astype(float)
        assert 0 < float(jnp.max(jnp.abs(errors))) <= unit
    levels = {leaf.dtype.name for leaf in jax.tree.leaves(sent.code)}
    assert levels == {"int8", "float64", "bfloat16"}
    # 16 and 20 levels, two scales, 100 integers of 64 bits, a key, a rate, 3 numbers.
    assert tree.number_of_bytes(sent) == 16 + 20 + 8 + 2 + 800 + 8 + 4 + 24


def test_a_downlink_without_large_arrays_is_sent_unchanged():
    download = Download()
    sent = download.encode((1.5, jnp.ones(15)), seed_of(0, 0))
    assert jax.tree.leaves(sent.code) == []
    received = download.decode(sent)
    assert float(received[0]) == 1.5
    np.testing.assert_array_equal(received[1], jnp.ones(15))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (TopK(0.1), "TopK omits entries of x and y"),
        (RandomK(0.1), "RandomK omits entries of x and y"),
        (Chain(TopK(0.1), Quantise()), "TopK omits entries of x and y"),
        (Feedback(Quantise()), "a device that misses an exchange would miss its"),
        (8, "8 has no encode and decode. Pass a code such as Quantise"),
    ],
)
def test_codes_that_a_device_cannot_decode_alone_are_refused(code, message):
    with pytest.raises(TypeError, match=message):
        Download(code)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Drift:
    """A toy algorithm whose devices add 1 to each entry of what they receive."""

    def init(self, problem, x, y):
        return _Point(x, y, jnp.zeros(len(x))), ()

    def opening(self, problem):
        return ()

    def phases(self, problem):
        phase = Phase(
            name="drift",
            steps=0,
            broadcast=lambda server: server,
            start=lambda downlink, private, data, key: downlink,
            step=lambda carry, data, key: carry,
            finish=lambda carry, downlink, key: (
                Upload((carry.x + 1.0, carry.y + 1.0), carry.x),
                (),
                {},
            ),
            server=lambda server, mean, key: _Point(
                mean.update[0], mean.update[1], mean.beside
            ),
            reference=lambda downlink: (downlink.x, downlink.y),
        )
        return (phase,)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Point:
    x: Any
    y: Any
    received: Any


def inner_state(server: Any) -> Any:
    """Return the state inside those of transforms."""
    return inner_state(server.inner) if hasattr(server, "inner") else server


@pytest.mark.parametrize(
    "others",
    [
        (Clip(100.0),),
        *at_night((), (AdaptiveClip(first_norm=100.0),), (TrimmedMean(0.2),)),
    ],
    ids=lambda others: "-".join(type(other).__name__ for other in others) or "alone",
)
def test_the_server_adds_the_mean_change_to_its_exact_state(others):
    algorithm = with_transforms(Drift(), Download(Quantise(2), smallest=2), *others)
    last = None
    for last in run(PROBLEM, algorithm, *inputs(), rounds=20):
        state = inner_state(last.server)
        for begin, now in zip(federation.START, (state.x, state.y), strict=True):
            np.testing.assert_allclose(now, begin + last.number + 1, rtol=1e-13)
    # What devices received has errors of up to the largest entry, 20.
    assert last is not None
    assert float(jnp.max(jnp.abs(inner_state(last.server).received - last.x + 1))) > 1.0


def test_each_exchange_draws_another_unbiased_code():
    algorithm = with_transforms(Drift(), Download(Quantise(2), smallest=2))
    rounds = run(PROBLEM, algorithm, *inputs(), rounds=400, weights=federation.WEIGHTS)
    states = [result.server.inner for result in rounds]
    x = np.array([state.x for state in states]) - 1.0
    units = np.abs(x).max(axis=1, keepdims=True)
    errors = (np.array([state.received for state in states]) - x) / units
    assert np.abs(errors).max() <= 1 + 1e-9
    # A code of 2 bits has the levels -1, 0 and 1; a variance of a part p is p (1 - p).
    part = np.abs(x) / units
    deviations = np.sqrt(np.sum(part * (1 - part), axis=0))
    inner = deviations > 1.0
    assert inner.sum() == 2  # the largest entry has no error
    assert np.all(np.abs(errors.sum(axis=0)[inner]) <= 4 * deviations[inner])
    following = np.sum(errors[1:, inner] * errors[:-1, inner], axis=0)
    assert np.all(np.abs(following) <= 4 * np.sum(part * (1 - part), axis=0)[inner] / 9)


def test_bytes_down_are_those_of_the_code():
    plain, coded = FedBiO(0.1), with_transforms(FedBiO(0.1), SMALL, LARGEST)
    base, other = (
        predict_costs(Run(PROBLEM, each, *inputs(), rounds=1))
        for each in (with_transforms(plain, LARGEST), coded)
    )
    assert other.bytes_up == base.bytes_up
    # x, y and z: 11 numbers of 8 bytes become 11 levels and three scales.
    saved = (11 * 8 - 11 - 3 * 8) * federation.in_memory().device_count
    assert base.bytes_down - other.bytes_down == saved


def test_messages_to_sites_have_integers(monkeypatch):
    sent: list[dict[str, np.ndarray]] = []
    encode_for = Task.encode_for

    def recorded(self, *arguments):
        sent.append(self.arrays)
        return encode_for(self, *arguments)

    monkeypatch.setattr(Task, "encode_for", recorded)
    algorithm = with_transforms(FedBiO(0.1), SMALL, LARGEST)
    expected = trajectory(algorithm, Simulation())
    among = sites_holding(federation.held(), PROBLEM, algorithm)
    actual = trajectory(algorithm, served(among), devices=enrolled(among))
    assert_same(expected, actual)
    for arrays in sent:
        entries = {
            dtype: sum(a.size for a in arrays.values() if a.dtype == dtype)
            for dtype in ("int8", "float64")
        }
        assert entries == {"int8": 11, "float64": 3}


@pytest.mark.parametrize("sampled", by_day([False, True], True))
def test_a_run_with_coded_downloads_resumes_to_the_same_bits(sampled, tmp_path):
    algorithm = with_transforms(FedBiO(0.1), SMALL, LARGEST)
    options: dict[str, Any] = {"participation": UniformSample(2)} if sampled else {}
    arguments = PROBLEM, algorithm, *inputs()
    checkpoints = Checkpoints(tmp_path / "run", every=2)
    *_, whole = run(*arguments, rounds=5, **options)
    five = Run(*arguments, rounds=5, **options)
    assert predict_costs(five) == whole.costs
    list(run(*arguments, rounds=3, checkpoints=checkpoints, **options))
    *_, resumed = five.resume(checkpoints)
    for one, other in zip(
        jax.tree.leaves((whole.server, whole.private)),
        jax.tree.leaves((resumed.server, resumed.private)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
@pytest.mark.parametrize("bits", [8, *at_night(16)])
def test_rounding_limits_the_distance_from_x_star_and_does_not_add_up(bits):
    """Compare with the closed form of a heterogeneous quadratic."""
    ends = distances(0.05, 4_000, bits, every=1_000)
    # A unit of 8 or 16 bits is 8e-3 or 3e-5 of the largest entry, which is near 1.
    limit = {8: 2e-3, 16: 1e-5}[bits]
    assert max(ends) < limit
    # With exact downloads the last distance is 2e-15.
    assert ends[-1] > 1e-3 * limit


@in_tiers(quick=(), check=())
def test_every_algorithm_runs_with_coded_downloads_on_every_engine(name):
    algorithm = with_transforms(ALGORITHMS[name](), SMALL, Clip(0.3), Quantise())
    expected = trajectory(algorithm, Simulation())
    assert np.all(np.isfinite(expected))
    for engine in (Simulation(chunk_size=3), shards(2), DebugSimulation()):
        assert_same(expected, trajectory(algorithm, engine))
    assert_same(expected, at_sites(algorithm))


@in_tiers(quick=(), check=())
def test_16_bits_down_change_a_run_by_their_rounding(name):
    algorithm = ALGORITHMS[name]()
    expected = np.array(trajectory(algorithm, Simulation()))
    coded = with_transforms(algorithm, Download(Quantise(16), smallest=2))
    actual = np.array(trajectory(coded, Simulation()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-2)
    assert not np.array_equal(actual, expected)
