"""Every learning rate of every algorithm may be a schedule, such as optax's."""

from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedbilevel import (
    InMemoryDevices,
    LocalBSGM,
    NeumannSeries,
    WarmStart,
    optax_schedule,
    plan_from,
    run,
)
from fedbilevel.engines import simulation
from fedbilevel.experiments.schema.registry import list_types
from fedbilevel.mathematics.optax_schedule import factories
from fedbilevel.mathematics.schedules import LearningRate
from fedbilevel.mathematics.settings import declarations, unmarked
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, by_day

SERIES = NeumannSeries(1, 0.1)  # short, for programs that compile sooner
DECAY = {"init_value": 0.2, "transition_steps": 4, "decay_rate": 0.5}
# Created once, since a new function needs a new compilation.
CONSTANT = optax.constant_schedule(0.2)
DECAYING = optax.exponential_decay(**DECAY)

PROGRAMS: Any = simulation._work


def by_hand(step):
    return 0.2 * 2.0 ** (-jnp.asarray(step, float) / 4)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneOf:
    """One of three schedules by number, so that they share a compiled program."""

    which: int

    def __call__(self, step):
        rates = [schedule(step) for schedule in (CONSTANT, DECAYING, by_hand)]
        return jnp.stack([jnp.asarray(rate, float) for rate in rates])[self.which]


def with_rate(value, rate):
    """Return settings with another rate for every field that allows a schedule."""
    changes = {}
    for field in fields(value):
        setting = getattr(value, field.name)
        if field.type == LearningRate:
            changes[field.name] = rate
        elif field.name == "hypergradient":
            changes[field.name] = SERIES
        elif isinstance(setting, WarmStart):
            changes[field.name] = replace(with_rate(setting, rate), exchanges=1)
    return replace(value, **changes)


# One algorithm of each class with rates: with a warm start if there is one, without a
# private lower level.
SCHEDULED = {
    type(algorithm).__name__: algorithm
    for name, make in ALGORITHMS.items()
    if "private" not in name and "drawn" not in name
    for algorithm in [make()]
    if hasattr(algorithm, "learning_rate")
}
every_algorithm = pytest.mark.parametrize(
    "name", by_day(SCHEDULED, "LocalBSGM", "FedBiO")
)


def server_after(algorithm):
    generator = np.random.default_rng(7)
    held = [quadratic.examples(generator, size, 0.3) for size in (3, 5)]
    x = jnp.linspace(-1.0, 1.0, quadratic.X_SIZE)
    y = jnp.linspace(1.0, 2.0, quadratic.Y_SIZE)
    problem, devices = quadratic.problem(), InMemoryDevices(held)
    # If the first round has an opening, a later round needs another program.
    rounds = 1 if algorithm.opening(problem) else 2
    *_, last = run(problem, algorithm, devices, x, y, rounds=rounds)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(last.server)])


def test_the_table_has_a_learning_rate_in_every_algorithm_and_in_a_warm_start():
    owners = {type(algorithm) for algorithm in SCHEDULED.values()}
    known = list_types("algorithm").values()
    assert owners == {cls for cls in known if "learning_rate" in declarations(cls)}
    kinds = {
        declarations(owner)["learning_rate"].kind for owner in {*owners, WarmStart}
    }
    assert kinds == {unmarked(LearningRate)}
    assert any(getattr(value, "warm_start", None) for value in SCHEDULED.values())


@pytest.mark.nightly
@every_algorithm
def test_schedules_of_optax_are_their_numbers_and_decay_as_written_by_hand(name):
    algorithm = SCHEDULED[name]
    number, constant, decaying, expected = (
        server_after(with_rate(algorithm, rate))
        for rate in (0.2, OneOf(0), OneOf(1), OneOf(2))
    )
    np.testing.assert_allclose(constant, number, rtol=0, atol=1e-12)
    np.testing.assert_allclose(decaying, expected, rtol=0, atol=1e-12)
    assert np.abs(decaying - constant).max() > 1e-6
    # A schedule of optax is a function, and therefore part of the program.
    bare = with_rate(algorithm, DECAYING)
    assert DECAYING not in jax.tree.leaves(bare)
    assert bare.learning_rate(4) == pytest.approx(0.1)


@pytest.mark.slow
def test_a_bare_constant_schedule_of_optax_runs_as_its_number():
    number, constant = (
        server_after(with_rate(SCHEDULED["FedBiO"], rate)) for rate in (0.2, CONSTANT)
    )
    np.testing.assert_allclose(constant, number, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_warm_start_counts_its_steps_across_exchanges_and_the_algorithm_its_own():
    # With one noiseless example and a tiny rate of x, y follows a recursion.
    warm = WarmStart(optax.linear_schedule(0.3, 0.0, 6), exchanges=3, local_steps=2)
    algorithm = LocalBSGM(
        lambda step: jnp.where(step < 2, 1e-12, 1e-3), SERIES, warm_start=warm
    )
    x = np.linspace(-1.0, 1.0, quadratic.X_SIZE)
    y = np.linspace(1.0, 2.0, quadratic.Y_SIZE)
    devices, problem = quadratic.exact_device(), quadratic.problem()
    (last,) = run(problem, algorithm, devices, jnp.array(x), jnp.array(y), rounds=1)
    mean = quadratic.Mean.of(quadratic.devices(1, 1, 0.0))
    for step in range(6):
        slope = mean.matrix @ y - mean.coupling @ x - mean.offset
        y = y - 0.3 * (1 - step / 6) * slope
    # If the count continued from 6, the algorithm's first rate would be 1e-3.
    np.testing.assert_allclose(last.y, y, rtol=0, atol=1e-10)
    assert last.server.step == 1


@pytest.mark.slow
def test_a_warm_start_of_many_exchanges_compiles_two_programs():
    warm = WarmStart(CONSTANT, exchanges=5)
    algorithm = LocalBSGM(0.1, SERIES, warm_start=warm)
    before = PROGRAMS._cache_size()
    server_after(algorithm)
    assert PROGRAMS._cache_size() - before == 3  # and the first round


@pytest.mark.nightly
def test_a_named_schedule_is_the_one_of_optax_and_compiles_once():
    named = server_after(
        with_rate(SCHEDULED["FedBiO"], optax_schedule("exponential_decay", **DECAY))
    )
    expected = server_after(with_rate(SCHEDULED["FedBiO"], DECAYING))
    np.testing.assert_array_equal(named, expected)
    before = PROGRAMS._cache_size()
    problem = quadratic.problem()
    devices = quadratic.exact_device()
    x, y = jnp.ones(quadratic.X_SIZE), jnp.ones(quadratic.Y_SIZE)
    for _ in range(2):
        rate = optax_schedule("exponential_decay", **DECAY)
        list(
            run(problem, with_rate(SCHEDULED["FedBiO"], rate), devices, x, y, rounds=1)
        )
    assert PROGRAMS._cache_size() - before == 1


def test_schedules_may_hold_tables_lists_and_schedules():
    steps = optax_schedule(
        "piecewise_constant_schedule",
        init_value=0.4,
        boundaries_and_scales={"3": 0.5, 5: 0.5},
    )
    assert [float(steps(t)) for t in (2, 4, 6)] == pytest.approx([0.4, 0.2, 0.1])
    joined = optax_schedule(
        "join_schedules",
        schedules=[
            {"schedule": "constant_schedule", "value": 0.3},
            {"schedule": "constant_schedule", "value": 0.1},
        ],
        boundaries=[10],
    )
    assert [float(joined(t)) for t in (9, 10)] == pytest.approx([0.3, 0.1])
    assert hash(joined) == hash(optax_schedule("join_schedules", **joined.table))


def test_every_factory_is_one_of_optax_itself():
    assert len(factories()) >= 13
    assert all(getattr(optax, name) is value for name, value in factories().items())
    assert "inject_hyperparams" not in factories()


def test_no_plan_is_made_from_a_schedule_that_no_corollary_covers():
    algorithm = LocalBSGM(CONSTANT, SERIES)
    with pytest.raises(ValueError, match="a schedule that no corollary covers"):
        plan_from(algorithm, devices=2, steps=10, accuracy=0.1)
