import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedbilevel import (
    BilevelProblem,
    InMemoryDevices,
    LocalExamples,
    NeumannSeries,
    WarmStart,
)
from fedbilevel.metrics import Survey, Verdict, diagnose, diagnosis
from tests import quadratic
from tests.quadratic import Mean

pytestmark = pytest.mark.slow

X, Y = np.full(quadratic.X_SIZE, 0.5), np.zeros(quadratic.Y_SIZE)
SERIES = NeumannSeries(terms=60, scale=0.1)
WARM = WarmStart(learning_rate=0.1, exchanges=150)


def scattered(devices, per_device, between, within, seed=5):
    """Return devices that differ by `between`, their examples scattered by `within`."""
    generator = np.random.default_rng(seed)
    held = []
    for _ in range(devices):
        centre = quadratic.examples(generator, 1, between)
        noise = quadratic.examples(generator, per_device, within)
        plain = quadratic.examples(generator, 1, 0.0)
        held.append(
            type(centre)(
                *(
                    type(level)(
                        *(c + n - p for c, n, p in zip(level, noisy, base, strict=True))
                    )
                    for level, noisy, base in zip(centre, noise, plain, strict=True)
                )
            )
        )
    return held


def true_distance(held) -> float:
    whole = Mean.of(held)
    y = whole.lower_solution(X)
    own = np.mean([Mean.of([device]).hypergradient(X, y) for device in held], axis=0)
    truth = whole.hypergradient(X)
    return float(np.linalg.norm(own - truth) / true_scale(held))


def true_scale(held) -> float:
    whole = Mean.of(held)
    hypergradient = whole.hypergradient(X)
    direct = whole.shift + quadratic.RIDGE * X
    return float(
        max(np.linalg.norm(hypergradient), np.linalg.norm(direct - hypergradient))
    )


def test_the_distance_is_that_of_the_closed_form():
    held = scattered(4, per_device=1, between=0.6, within=0.0)
    survey = Survey(SERIES, batch_size=1, warm_start=WARM)
    found = diagnose(quadratic.problem(), survey, InMemoryDevices(held), X, Y, rounds=3)
    assert found.high - found.low < 1e-9
    assert true_distance(held) > 0.2
    np.testing.assert_allclose(found.distance, true_distance(held), rtol=2e-3)
    assert found.verdict is Verdict.HETEROGENEOUS
    assert "FedBiO" in str(found)


def test_with_noise_the_distance_lies_between_its_limits():
    held = scattered(4, per_device=30, between=0.6, within=0.2)
    survey = Survey(SERIES, batch_size=16, warm_start=WARM)
    found = diagnose(quadratic.problem(), survey, InMemoryDevices(held), X, Y)
    assert 0.001 < found.high - found.low < 0.2
    assert found.low < true_distance(held) < found.high
    assert found.verdict is Verdict.HETEROGENEOUS


def test_a_homogeneous_federation_passes():
    (held,) = scattered(1, per_device=30, between=0.0, within=0.2)
    devices = InMemoryDevices.sharing(held, device_count=8)
    survey = Survey(SERIES, batch_size=16, warm_start=WARM)
    found = diagnose(quadratic.problem(), survey, devices, X, Y)
    assert found.verdict is Verdict.HOMOGENEOUS
    assert "LocalBSGVRM" in str(found)


def test_too_few_samples_leave_it_unclear():
    held = scattered(2, per_device=30, between=0.0, within=0.5)
    survey = Survey(SERIES, batch_size=1)
    found = diagnose(quadratic.problem(), survey, InMemoryDevices(held), X, Y, rounds=4)
    assert found.verdict is Verdict.UNCLEAR


@pytest.mark.parametrize("dimension", [3, 300])
def test_the_limits_hold_the_truth_as_often_as_they_say(dimension):
    # Differences and hypergradients as a survey would see them, with known truth.
    generator = np.random.default_rng(0)
    truth, rounds, trials = 0.25, 20, 400
    direction = np.zeros(dimension)
    direction[0] = 1.0
    held = 0
    for _ in range(trials):
        noise = 0.4 / np.sqrt(dimension) * generator.normal(size=(2, rounds, dimension))
        differences, wholes = truth * direction + noise[0], direction + noise[1]
        grams = [rows @ rows.T for rows in (differences, wholes, 0 * wholes)]
        ratio, error = diagnosis._jackknife(grams)
        width = stats.t.ppf(0.975, rounds - 1) * error
        held += ratio - width < truth**2 < ratio + width
    assert 0.90 < held / trials < 0.99


def test_mistakes_are_told():
    devices = InMemoryDevices(scattered(2, 1, 0.0, 0.0))
    with pytest.raises(ValueError, match="at least 3 rounds"):
        diagnose(quadratic.problem(), Survey(SERIES), devices, X, Y, rounds=2)
    # Finite, and wrong: the series doubles with every term, y runs away from y*(x).
    wild = Survey(NeumannSeries(terms=10, scale=1.0))
    with pytest.raises(ArithmeticError, match="series diverges; lower its scale"):
        diagnose(quadratic.problem(), wild, devices, X, Y, rounds=3)
    away = Survey(SERIES, warm_start=WarmStart(learning_rate=1.0, exchanges=10))
    with pytest.raises(ArithmeticError, match="warm start led away from"):
        diagnose(quadratic.problem(), away, devices, X, Y, rounds=3)


def test_a_point_where_the_hypergradient_vanishes_is_refused():
    def lower_loss(x, y, batch):
        return jnp.mean((y - batch) ** 2) + jnp.exp(x) * y**2

    def upper_loss(x, y, batch):
        return jnp.mean((y - batch) ** 2)

    ones = np.ones(2)
    devices = InMemoryDevices([LocalExamples(ones, ones)] * 2)
    problem = BilevelProblem(upper_loss, lower_loss)
    survey = Survey(NeumannSeries(5, 0.1))
    with pytest.raises(ArithmeticError, match="vanishes"):
        diagnose(problem, survey, devices, 0.0, 0.0, rounds=3)
