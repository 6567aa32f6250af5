"""AutoFedBiO: known solutions, scales of the losses, and the divergence guard."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    FullParticipation,
    InMemoryDevices,
    Limits,
    LocalExamples,
    UniformSample,
    run,
)
from fedbilevel.algorithms.guard import MOST_SETBACKS, judge, new_guard
from tests import quadratic
from tests.algorithms.table import at_night, by_day

pytestmark = pytest.mark.slow

ROUNDS = 300
EVERYONE = FullParticipation()


def last_round(
    problem, devices, x, y, rounds=ROUNDS, participation=EVERYONE, **settings
):
    algorithm = AutoFedBiO(rounds, **settings)
    *_, last = run(
        problem,
        algorithm,
        devices,
        x,
        y,
        rounds=rounds,
        participation=participation,
    )
    return last


def alone(*values):
    """Return devices with one example each, so that draws are deterministic."""
    held = [np.asarray([value]) for value in values]
    return InMemoryDevices([LocalExamples(rows, rows) for rows in held])


@pytest.mark.parametrize("local_steps", [1, *at_night(5)])
def test_it_reaches_the_solution_for_devices_that_differ(local_steps):
    # Lower: a_k (y − b_k x)² / 2, so y*(x) = x Σ a b / Σ a; upper: (y − 1)².
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - 1.0) ** 2 + 0.0 * batch[:, 0]),
        lower_loss=lambda x, y, batch: jnp.mean(
            0.5 * batch[:, 0] * (y - batch[:, 1] * x) ** 2
        ),
    )
    pairs = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 3.0]])
    a, b = pairs.T
    solution = a.sum() / (a * b).sum()
    start = alone(*pairs), jnp.array(2.0), jnp.array(0.0)
    last = last_round(problem, *start, local_steps=local_steps)
    error = abs(float(last.x) - solution)
    if local_steps == 1:
        assert error < 1e-3
        assert abs(float(last.y) - 1.0) < 1e-3
    else:
        # Several local steps let devices drift apart, as documented.
        assert 1e-2 < error < 0.1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (1e-6, 1e-4),
        *(
            pytest.param(*scales, marks=pytest.mark.nightly)
            for scales in [(1e3, 1.0), (1.0, 1e6)]
        ),
    ],
)
def test_the_scales_of_the_losses_change_nothing(upper, lower):
    def scaled(upper, lower):
        return BilevelProblem(
            lambda x, y, batch: upper * quadratic.upper_loss(x, y, batch),
            lambda x, y, batch: lower * quadratic.lower_loss(x, y, batch),
        )

    generator = np.random.default_rng(0)
    devices = InMemoryDevices(
        [quadratic.examples(generator, size, 0.3) for size in (3, 5)]
    )
    start = jnp.ones(quadratic.X_SIZE), jnp.zeros(quadratic.Y_SIZE)
    base = last_round(scaled(1.0, 1.0), devices, *start, rounds=20)
    other = last_round(scaled(upper, lower), devices, *start, rounds=20)
    assert not np.allclose(base.x, 1.0, atol=1e-2)
    np.testing.assert_allclose(other.x, base.x, rtol=0, atol=1e-8)
    np.testing.assert_allclose(other.y, base.y, rtol=0, atol=1e-8)
    ratio = upper / lower
    np.testing.assert_allclose(
        other.server.adjoint, ratio * base.server.adjoint, rtol=1e-6, atol=1e-8 * ratio
    )


@pytest.mark.nightly
def test_rates_follow_a_curvature_that_grows_as_x_moves():
    # The curvature x⁴ grows a thousandfold between 1 and the minimum of Φ.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((x - 6.0 * batch) ** 2 + y**2),
        lower_loss=lambda x, y, batch: jnp.mean(0.5 * x**4 * (y - batch) ** 2),
    )
    last = last_round(
        problem, alone(1.0, 1.0), jnp.array(1.0), jnp.array(0.0), rounds=600
    )
    assert float(last.x) > 5.5
    assert abs(float(last.y) - 1.0) < 1e-3
    assert float(last.server.curvature) > 900
    assert int(last.server.setbacks) == 0


def cliff(x, y, batch):
    """Return a loss with a wall at 1, which the initial curvature does not show."""
    wall = 0.5e4 * jax.nn.relu(y - 1.0) ** 2
    return jnp.mean(0.5 * (y - 2.0 * batch) ** 2) + wall


# Problems of several tests are created once, so that their programs compile once.
CLIFF = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - x) ** 2 + 0.0 * batch),
    lower_loss=cliff,
)
# √(1 + (y − x)²) is almost linear far from y*(x): a step of length 1 over the curvature
# there jumps over y*(x), and back again.
STRAIGHT = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
    lower_loss=lambda x, y, batch: (
        jnp.mean(jnp.sqrt(1.0 + (y - x * batch) ** 2)) + 0.01 * y**2
    ),
)
ROWS = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - batch[:, 0]) ** 2),
    lower_loss=lambda x, y, batch: jnp.mean((y - x * batch[:, 0]) ** 2),
)


@pytest.mark.nightly
def test_an_explosion_is_answered_by_stepping_back(caplog):
    start = alone(1.0, 1.0), jnp.array(2.0), jnp.array(0.0)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        last = last_round(CLIFF, *start)
    messages = [record.getMessage() for record in caplog.records]
    assert any("continues from its last good state" in text for text in messages)
    assert 1 <= int(last.server.setbacks) == len(messages)
    assert abs(float(last.y) - 1.0) < 1e-3
    assert abs(float(last.x) - 1.0) < 0.05
    again = last_round(CLIFF, *start)
    jax.tree.map(np.testing.assert_array_equal, again.server, last.server)


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [9, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_short_run_recovers_from_an_explosion(rounds):
    # All rounds of the warm-up of x diverge, so there is no loss for comparison.
    start = alone(1.0, 1.0), jnp.array(2.0), jnp.array(0.0)
    last = last_round(CLIFF, *start, rounds=rounds)
    assert 1 <= int(last.server.setbacks) <= rounds // 2
    # The run continues with steps short enough for the cliff.
    assert 0.01 < float(last.y) < 1.1
    assert float(last.x) < 1.99


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("condition", "rounds", "error"),
    [(100, 300, 0.005), (300, 300, 0.1), (1000, 1000, 0.1)],
)
def test_ten_steps_for_each_unit_of_the_condition_number_suffice(
    condition, rounds, error
):
    curvatures = jnp.array([1.0, 1.0 / condition])
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(batch) * jnp.sum((y - 1.0) ** 2),
        lower_loss=lambda x, y, batch: (
            jnp.mean(batch) * jnp.sum(curvatures * (y - x) ** 2)
        ),
    )
    start = alone(1.0, 1.0), jnp.full(2, 2.0), jnp.full(2, 2.0)
    last = last_round(problem, *start, rounds=rounds)
    np.testing.assert_allclose(last.x, 1.0, atol=error)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [(3,), *at_night(())])
def test_it_leaves_a_start_at_zero(size):
    # y*(0) = 0: there is no length with which the first step could be compared.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(batch) * jnp.sum((y - 1.0) ** 2),
        lower_loss=lambda x, y, batch: jnp.mean(batch) * jnp.sum((y - x) ** 2),
    )
    last = last_round(problem, alone(1.0, 1.0), jnp.zeros(size), jnp.zeros(size))
    assert int(last.server.setbacks) == 0
    np.testing.assert_allclose(last.x, 1.0, atol=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("y", [0.0, 50.0])
def test_a_loss_that_is_flat_where_it_begins_does_not_throw_it_about(y):
    last = last_round(STRAIGHT, alone(1.0, 1.0), jnp.array(2.0), jnp.array(y))
    assert 1.0 < float(last.x) < 1.5  # from 2 to 1.02, on the way
    assert abs(float(last.y - last.x)) < 0.05


@pytest.mark.parametrize(
    ("rows", "excluded"),
    [
        (slice(None), ROUNDS - 1),
        # Only some batches have NaN: later local steps fail as if they diverged.
        pytest.param(slice(1), ROUNDS // 2, id="one row of forty"),
    ],
)
def test_a_device_whose_examples_are_not_finite_is_left_out_and_named(rows, excluded):
    good = np.ones((40, 1))
    bad = good.copy()
    bad[rows] = np.nan
    held = [LocalExamples(good, bad), *[LocalExamples(good, good)] * 3]
    last = last_round(ROWS, InMemoryDevices(held), jnp.array(2.0), jnp.array(0.0))
    assert abs(float(last.x) - 1.0) < 0.02
    assert last.exclusions.excluded >= excluded
    assert int(last.server.setbacks) == 0


@pytest.mark.nightly
def test_devices_that_differ_much_are_not_taken_for_explosions():
    # One device in twenty is far away: in its rounds, the loss is 100 times as large.
    far = np.where(np.arange(100) < 5, 20.0, 0.0)
    devices = InMemoryDevices([LocalExamples(np.full(1, c), np.ones(1)) for c in far])
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        lower_loss=lambda x, y, batch: jnp.mean(batch) * (y - x) ** 2,
    )
    last = last_round(
        problem,
        devices,
        jnp.array(2.0),
        jnp.array(0.0),
        participation=UniformSample(devices=10),
    )
    assert int(last.server.setbacks) < 10
    assert abs(float(last.x) - 1.0) < 0.5


@jax.tree_util.register_static
class Lying:
    """AutoFedBiO in which devices with a negative example upload false values."""

    def __init__(self, rounds: int, lie: str, value: float) -> None:
        self.inner, self.lie, self.value = AutoFedBiO(rounds), lie, value

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def init(self, problem, x, y):
        return self.inner.init(problem, x, y)

    def opening(self, problem):
        (phase,) = self.inner.opening(problem)
        return (self._falsify(phase, lambda value, _: 0.0 * value + self.value),)

    def phases(self, problem):
        def change(beside, downlink):
            measured, steps, broken = beside
            if self.lie == "both, timed":
                _, step, shared = downlink
                warm = self.inner.rounds * self.inner.local_steps // 10
                loud = jnp.abs(step - warm) > 3 * self.inner.local_steps
                lie = self.value * shared.level + 9.0 * measured.loss
                loss = jnp.where(loud, lie, measured.loss)
                measured = measured._replace(loss=loss)
                return measured, steps, jnp.where(step >= warm, 1.0, broken)
            if self.lie == "broken":
                return measured, steps, 0.0 * broken + self.value
            if self.lie in measured._fields:
                value = 0.0 * measured.loss + self.value
                measured = measured._replace(**{self.lie: value})
            return measured, steps, broken

        (phase,) = self.inner.phases(problem)
        return (self._falsify(phase, change),)

    def _falsify(self, phase, change):
        if (self.lie == "opening") != (phase.steps == 0):
            return phase

        def start(downlink, private, data, key):
            (batch,) = data.upper.draw(key, 1, draws=1)
            return phase.start(downlink, private, data, key), batch[0] < 0

        def finish(carry, downlink, key):
            upload, private, info = phase.finish(carry[0], downlink, key)
            beside = jax.tree.map(
                lambda lie, value: jnp.where(carry[1], lie, value),
                change(upload.beside, downlink),
                upload.beside,
            )
            return upload._replace(beside=beside), private, info

        return phase._replace(
            start=start,
            step=lambda carry, data, key: (phase.step(carry[0], data, key), carry[1]),
            finish=finish,
        )


LIES = [
    ("loss", 1e30),
    ("loss", -1e30),
    ("loss", 8.0),
    ("bend", -1e30),
    ("broken", 1e9),
    ("curvature", -1.0),
    ("opening", 1e30),
    ("both, timed", 8.5),
]


@pytest.mark.nightly
@pytest.mark.parametrize("case", by_day(LIES, LIES[0], LIES[-1]), ids=str)
def test_what_one_device_reports_does_not_stop_a_run(case):
    lie, value = case
    # The liar's example is −1, the others' 1: their losses are the same.
    held = [LocalExamples(np.full(1, c), np.ones(1)) for c in (-1.0, *[1.0] * 6)]
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - jnp.abs(batch)) ** 2),
        lower_loss=lambda x, y, batch: jnp.mean(batch) * (y - x) ** 2,
    )
    *_, last = run(
        problem,
        Lying(ROUNDS, lie, value),
        InMemoryDevices(held),
        jnp.array(2.0),
        jnp.array(0.0),
        rounds=ROUNDS,
        limits=Limits(distance=10.0),
    )
    assert int(last.server.setbacks) <= MOST_SETBACKS
    assert abs(float(last.x) - 1.0) < 0.05


@pytest.mark.parametrize(
    ("setbacks", "loss", "doubtful", "broken", "exploded"),
    [
        (0, 1.0, False, False, False),
        (0, 1.0, True, False, True),
        (0, 100.0, False, False, True),
        (MOST_SETBACKS, 1.0, True, False, False),
        (MOST_SETBACKS, 1.0, False, True, True),
        (MOST_SETBACKS, 100.0, False, False, False),
    ],
)
def test_after_five_setbacks_only_most_devices_bring_about_another(
    setbacks, loss, doubtful, broken, exploded
):
    no, yes = jnp.array(False), jnp.array(True)
    guard, _ = judge(
        new_guard(jnp.array(1.0), jnp.zeros(())),
        jnp.array(1.0),
        jnp.array(1.0),
        warm=no,
        broken=no,
        doubtful=no,
    )
    _, result = judge(
        guard._replace(setbacks=jnp.asarray(setbacks)),
        jnp.array(2.0),
        jnp.array(loss),
        warm=yes,
        broken=jnp.asarray(broken),
        doubtful=jnp.asarray(doubtful),
    )
    assert bool(result) == exploded


@pytest.mark.nightly
def test_an_adjoint_in_negative_curvature_begins_again():
    # g = (y² − 1)² / 4 + x y / 10 is concave between its two minima, where y starts.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - 0.9 * batch) ** 2),
        lower_loss=lambda x, y, batch: jnp.mean(
            0.25 * (y**2 - 1.0) ** 2 + 0.1 * x * y + 0.0 * batch
        ),
    )
    last = last_round(
        problem, alone(1.0, 1.0), jnp.array(0.0), jnp.array(0.01), rounds=600
    )
    # At the minimum at 0.9, y³ − y + x / 10 = 0.
    assert abs(float(last.y) - 0.9) < 1e-2
    assert abs(float(last.x) - 10 * (0.9 - 0.9**3)) < 0.1


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        (9, "ends while the learning rate of x is still high"),
        (2, "is zero in the last rounds"),
        (3, None),
    ],
)
def test_a_run_of_another_length_than_planned_is_mentioned(planned, message, caplog):
    loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)  # noqa: E731
    problem = BilevelProblem(loss, loss)
    run(problem, AutoFedBiO(planned), alone(1.0), 1.0, 1.0, rounds=3)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (message is not None)
    assert message is None or message in messages[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0, expected a whole number, at least 2"),
        ({"rounds": 9, "momentum": 1.0}, "momentum is 1.0, .* at least 0 and below 1"),
        ({"rounds": 9, "lower_rate": 0.0}, "lower_rate is 0.0, .* above 0"),
        ({"rounds": 9, "local_steps": 0}, "local_steps is 0, .* at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AutoFedBiO(**settings)
