"""The rival algorithms against a plain-NumPy transcription of their rules.

Devices are ragged, noisy and unevenly weighted, and have different numbers of upper and
lower examples; all rates differ. So a batch that is redrawn instead of used twice, a
wrong step length, or a mean or projection at the wrong position causes a failure.
"""

from functools import cache
from itertools import combinations
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import (
    FedBiO,
    FedBiOAcc,
    FedNest,
    InMemoryDevices,
    LFedNest,
    LocalExamples,
    NeumannSeries,
    ShroFBO,
    SimFBO,
    run,
)
from fedbilevel.algorithms.sampling import draw_hypergradient_samples, draw_samples
from fedbilevel.data.examples import one_device
from fedbilevel.engines.protocol import Moment, device_key
from tests import quadratic
from tests.algorithms import rival_transcription as rules
from tests.algorithms.rival_transcription import Federation, Nested, NestedDraws, Rates

pytestmark = pytest.mark.slow

ROUNDS, LOCAL_STEPS, BATCH, OPENING_BATCH, SEED = 3, 3, 2, 5, 11
UPPER_SIZES, LOWER_SIZES = (6, 2, 4), (3, 8, 5)
WEIGHTS = np.array([1.0, 3.0, 2.0])
X = np.linspace(-1.0, 1.0, quadratic.X_SIZE)
Y = np.linspace(1.0, 2.0, quadratic.Y_SIZE)
FEDERATION = Federation(X, Y, WEIGHTS, ROUNDS)
ETA, RATES = 0.2, Rates(upper=0.4, lower=0.6, adjoint=0.9)
SCALED = Rates(*(ETA * rate for rate in RATES))


def _held() -> list[LocalExamples]:
    generator = np.random.default_rng(4)
    return [
        LocalExamples(
            upper=quadratic.examples(generator, upper, noise=0.4).upper,
            lower=quadratic.examples(generator, lower, noise=0.4).lower,
        )
        for upper, lower in zip(UPPER_SIZES, LOWER_SIZES, strict=True)
    ]


HELD = _held()


@cache
def replay(draw):
    """Return the package's draws at a position of the run, as NumPy arrays."""
    cohort = InMemoryDevices(HELD).cohort(np.arange(len(HELD)))

    @jax.jit
    def compiled(round_number, exchange, device, position):
        moment = Moment(round_number, exchange)
        key = device_key(jax.random.key(SEED), moment, device)
        return draw(one_device(cohort, device), jax.random.fold_in(key, position))

    return lambda *indices: jax.tree.map(np.asarray, compiled(*indices))


def draw_directions(data, key):
    return draw_samples(data, key, BATCH)


def draw_opening(data, key):
    return draw_samples(data, key, OPENING_BATCH)


def draw_lower(data, key):
    return data.lower.draw(key, BATCH, draws=1)[0]


def draw_upper(data, key):
    return data.upper.draw(key, BATCH, draws=1)[0]


def draw_both(data, key):
    upper_key, lower_key = jax.random.split(key)
    return draw_upper(data, upper_key), draw_lower(data, lower_key)


def rounds_of(algorithm, seed=SEED):
    """Return the rounds of the package's run, an iterator for the private state."""
    return run(
        quadratic.problem(),
        algorithm,
        InMemoryDevices(HELD),
        X,
        Y,
        rounds=ROUNDS,
        seed=seed,
        weights=WEIGHTS,
    )


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


def assert_same_server(result, expected):
    for name, theirs in expected._asdict().items():
        assert_close(getattr(result.server, name), theirs)


def assert_sometimes(projected):
    """Assert that both branches of the projection were executed."""
    assert any(projected)
    assert not all(projected)


def assert_same_devices(algorithm, trace, private_lower):
    """Compare every round with the trace, including private lower variables."""
    start = rules.Point(X, Y, np.zeros_like(Y))
    for result, points in zip(rounds_of(algorithm), trace.points, strict=True):
        if not private_lower:
            assert_same_server(result, points[0])
            continue
        assert_same_server(result, start._replace(x=points[0].x))
        ys, adjoints, *_ = jax.tree.leaves(result.private)
        assert_close(ys, [point.y for point in points])
        assert_close(adjoints, [point.adjoint for point in points])
    assert_sometimes(trace.projected)


@pytest.mark.parametrize("private_lower", [False, True])
def test_fedbio_equals_its_transcription(private_lower):
    radius = 0.6
    settings: Any = {"local_steps": LOCAL_STEPS, "private_lower": private_lower}
    trace = rules.fedbio(
        FEDERATION, replay(draw_directions), SCALED, radius, **settings
    )
    algorithm = FedBiO(ETA, *RATES, adjoint_radius=radius, batch_size=BATCH, **settings)
    assert_same_devices(algorithm, trace, private_lower)


@pytest.mark.nightly
@pytest.mark.parametrize("private_lower", [False, True])
def test_fedbio_acc_equals_its_transcription(private_lower):
    radius, mixing = 0.6, Rates(upper=4.0, lower=7.0, adjoint=10.0)
    settings: Any = {"local_steps": LOCAL_STEPS, "private_lower": private_lower}
    trace = rules.fedbio_acc(
        FEDERATION,
        replay(draw_directions),
        replay(draw_opening),
        ETA,
        RATES,
        mixing,
        radius,
        **settings,
    )
    algorithm = FedBiOAcc(
        ETA,
        *RATES,
        *mixing,
        adjoint_radius=radius,
        batch_size=BATCH,
        initial_batch_size=OPENING_BATCH,
        **settings,
    )
    assert_same_devices(algorithm, trace, private_lower)


@pytest.mark.parametrize("algorithm", [SimFBO, ShroFBO])
def test_simfbo_and_shrofbo_equal_their_transcription(algorithm):
    settings: Any = {"server_rate": 0.7, "discount": 0.8}
    radius = 0.6
    trace = rules.simfbo(
        FEDERATION,
        replay(draw_directions),
        SCALED,
        radius=radius,
        steps=(1, 3, 2),  # ⌈n / 3⌉ of 3, 8 and 5 lower examples
        normalised=algorithm is ShroFBO,
        **settings,
    )
    instance = algorithm(
        ETA,
        *RATES,
        adjoint_radius=radius,
        local_steps=LOCAL_STEPS,
        batch_size=BATCH,
        examples_per_step=3,
        **settings,
    )
    assert_same_devices(instance, trace, private_lower=False)


TERMS, THETA = 3, 0.15
SERIES = NeumannSeries(TERMS, THETA)


def draw_series(data, key):
    return draw_hypergradient_samples(data, key, BATCH, SERIES.curvature_draws)


NESTED: dict[str, Any] = {"lower_rounds": 2, "lower_steps": 2, "local_steps": 2}
NESTED_RULES = Nested(SCALED.upper, SCALED.lower, THETA, TERMS, **NESTED)


@pytest.mark.parametrize("random_truncation", [False, True])
def test_fednest_equals_its_transcription(random_truncation):
    algorithm = FedNest(
        ETA,
        SERIES,
        RATES.upper,
        RATES.lower,
        batch_size=BATCH,
        random_truncation=random_truncation,
        **NESTED,
    )
    results = list(rounds_of(algorithm))
    products = None
    if random_truncation:
        # The server draws N′ and stores it; another test covers its distribution.
        products = [int(result.server.products) for result in results]
        assert len(set(products)) > 1
    batches = NestedDraws(*map(replay, (draw_upper, draw_lower, draw_both)))
    expected = rules.fednest(FEDERATION, batches, NESTED_RULES, products)
    for ours, theirs in zip(results, expected, strict=True):
        assert_same_server(ours, theirs)


@pytest.mark.nightly
def test_fednest_draws_its_products_by_the_seed_of_the_run():
    algorithm = FedNest(ETA, SERIES, batch_size=BATCH, random_truncation=True)

    def products(seed):
        return [int(result.server.products) for result in rounds_of(algorithm, seed)]

    drawn = [products(seed) for seed in range(4)]
    assert products(0) == drawn[0]
    assert len(set(map(tuple, drawn))) > 1


def test_lfednest_equals_its_transcription():
    expected = rules.lfednest(
        FEDERATION, replay(draw_lower), replay(draw_series), NESTED_RULES
    )
    algorithm = LFedNest(
        ETA, SERIES, RATES.upper, RATES.lower, batch_size=BATCH, **NESTED
    )
    for ours, theirs in zip(rounds_of(algorithm), expected, strict=True):
        assert_same_server(ours, theirs)


@pytest.mark.parametrize("draw", [draw_directions, draw_opening, draw_series])
def test_the_batches_of_a_step_are_drawn_apart(draw):
    # The transcriptions reuse the package's batches, so they cannot test this.
    samples = replay(draw)(0, 0, LOWER_SIZES.index(max(LOWER_SIZES)), 1)
    batches = [samples.lower, samples.cross, *samples.curvature]
    matrices = [batch.matrix for batch in batches if batch]
    assert len(matrices) == (1 + TERMS if draw is draw_series else 3)
    for first, second in combinations(matrices, 2):
        assert not np.array_equal(first, second)
