"""An upper rate of 0 trains y with x fixed, with every algorithm and engine."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    CubeRootDecay,
    FedBiO,
    InMemoryDevices,
    Sharded,
    Simulation,
    run,
)
from fedbilevel.engines import simulation
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, by_day

pytestmark = pytest.mark.slow

TUNABLE = [name for name, make in ALGORITHMS.items() if hasattr(make(), "upper_rate")]
# With thirds and incommensurable weights, a mean of equal numbers is rounded.
X = np.linspace(-1.0, 1.3, quadratic.X_SIZE) / 3
Y = np.linspace(1.0, 2.0, quadratic.Y_SIZE) / 3
SIZES = (3, 8, 5, 1, 6, 4, 2)
WEIGHTS = np.array([1.0, 0.1, 2.5, 0.5, 1.0, 0.3, 0.7])
ENGINES = (Sharded(), Simulation(chunk_size=4))


def rounds_of(algorithm, problem=None, engine=Simulation()):
    generator = np.random.default_rng(7)
    held = [quadratic.examples(generator, size, 0.3) for size in SIZES]
    return list(
        run(
            problem or quadratic.problem(),
            algorithm,
            InMemoryDevices(held),
            jnp.asarray(X),
            jnp.asarray(Y),
            rounds=2,
            weights=WEIGHTS,
            engine=engine,
        )
    )


def lower_variable(result):
    """Return y, or the devices' private y if they have one."""
    local = [leaf for leaf in jax.tree.leaves(result.private) if leaf.ndim == 2]
    return local[0] if local else result.y


def test_every_algorithm_of_the_library_has_an_upper_rate():
    assert set(ALGORITHMS) - set(TUNABLE) == {
        "FedBiOAcc, Adam on the server",  # the inner algorithm has it
        "two exchanges, private state",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(TUNABLE, *KINDS[:2]))
def test_x_stays_to_the_bit_and_y_is_trained_as_it_would_be(name):
    # The lower loss uses the constant X, so a moving x has no effect on y.
    def lower_loss(x, y, batch):
        return quadratic.lower_loss(X, y, batch)

    problem = BilevelProblem(quadratic.upper_loss, lower_loss)
    tuned: Any = ALGORITHMS[name]()
    moving = rounds_of(tuned, problem)
    fixed = rounds_of(replace(tuned, upper_rate=0.0), problem)
    assert not np.allclose(moving[-1].x, X)
    assert not np.allclose(lower_variable(fixed[-1]), Y)
    for result in fixed:
        np.testing.assert_array_equal(result.x, X)
    np.testing.assert_allclose(
        lower_variable(fixed[-1]), lower_variable(moving[-1]), rtol=0, atol=1e-12
    )


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_x_stays_to_the_bit_on_other_engines_and_schedules(engine):
    algorithm = FedBiO(CubeRootDecay(0.2), upper_rate=0.0, local_steps=2)
    for result in rounds_of(algorithm, engine=engine):
        np.testing.assert_array_equal(result.x, X)


def test_fixing_x_needs_no_compilation():
    problem, algorithm = quadratic.problem(), FedBiO(0.1, upper_rate=0.3, local_steps=2)
    rounds_of(algorithm, problem)
    work: Any = simulation._work
    before = work._cache_size()
    rounds_of(replace(algorithm, upper_rate=0.0), problem)
    assert work._cache_size() == before


def test_a_negative_upper_rate_and_other_rates_of_0_are_refused():
    with pytest.raises(ValueError, match=r"upper_rate is -0\.1, .* at least 0"):
        FedBiO(0.1, upper_rate=-0.1)
    with pytest.raises(ValueError, match=r"lower_rate is 0\.0, .* above 0"):
        FedBiO(0.1, lower_rate=0.0)
