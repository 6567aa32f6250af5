"""Quadratics on which exactly one step is too large; the result names it."""

from dataclasses import replace
from functools import cache
from math import isnan
from typing import Any

import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    FedNest,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    LocalExamples,
    NeumannSeries,
    NoUploadsError,
    Run,
    SimFBO,
    WarmStart,
    optax_optimiser,
    run,
    with_server_optimiser,
)
from fedbilevel.experiments import causes
from fedbilevel.experiments.causes import Best, cause_of
from fedbilevel.metrics import Instability, Survey, find_instabilities, trials
from fedbilevel.metrics import instability as search
from fedbilevel.problems import Task, quadratic_task, random_quadratic

pytestmark = pytest.mark.slow

# The lower Hessian has eigenvalues from 1 to 4: steps beyond 1/2 diverge.
QUADRATIC = random_quadratic(devices=2)
SERIES = NeumannSeries(4, 0.2)
GOOD: dict[str, Any] = {
    "LocalBSGM": LocalBSGM(0.1, SERIES, 0.5, 1.0, 5.0, 5.0),
    "LocalBSGVRM": LocalBSGVRM(0.1, SERIES, 0.5, 1.0, 10.0, 10.0, local_steps=2),
    "FedNest": FedNest(0.1, NeumannSeries(1, 0.2), 0.5),
    "FedBiO": FedBiO(0.1, 0.3, local_steps=2),
    "SimFBO": SimFBO(0.1, 0.3),
}
LOWER = {"lower_rate": 5.5}
ADJOINT = {"adjoint_rate": 5.5}
SCALE = {"hypergradient": NeumannSeries(4, 1.0)}
UPPER = {"upper_rate": 300.0}
CASES = [
    ("LocalBSGM", SCALE, "SERIES"),
    # With momentum of weight b = 1/2 the limit is 2 (2 − b) / b / L = 6/4.
    ("LocalBSGM", LOWER, None),
    ("LocalBSGM", {"lower_rate": 16.0}, "LOWER"),
    ("LocalBSGVRM", SCALE, "SERIES"),
    ("LocalBSGVRM", UPPER, "UPPER"),
    ("FedNest", {"series": NeumannSeries(1, 4.0)}, "MEAN_SERIES"),
    ("FedBiO", LOWER, "LOWER"),
    ("FedBiO", ADJOINT, "ADJOINT"),
    ("FedBiO", UPPER, "UPPER"),
    ("SimFBO", {}, None),
    ("SimFBO", ADJOINT, "ADJOINT"),
    ("SimFBO", {"server_rate": 6.0, "adjoint_rate": 0.1}, "LOWER"),
]

BY_DAY = [CASES[number] for number in (0, 1, 6, 7, 8)]


@cache
def task() -> Task:
    """Return the quadratic in double precision, which is not yet on at import."""
    return quadratic_task(QUADRATIC)


def instabilities(algorithm: Any) -> tuple[Instability, ...]:
    problem, devices, x, y = task()[:4]
    whole = Run(problem, algorithm, devices, x, y, rounds=24)
    return find_instabilities(whole, x, y, rounds=24, seconds=600.0)


def distance(algorithm: Any, rounds: int = 80) -> float:
    """Return the last distances from y*(x) and x*, relative to the first."""
    problem, devices, x, y = task()[:4]
    solution = QUADRATIC.solution()
    try:
        *_, last = run(problem, algorithm, devices, x, y, rounds=rounds)
    except NoUploadsError:
        return np.inf
    return float(np.linalg.norm(last.x - solution) / np.linalg.norm(x - solution))


@pytest.mark.parametrize(
    ("name", "bad", "level"),
    # By day one case of each level, and one in which no step is too large.
    [
        case if case in BY_DAY else pytest.param(*case, marks=pytest.mark.nightly)
        for case in CASES
    ],
)
def test_the_step_that_is_too_large_is_named_with_a_cure(name, bad, level):
    algorithm = replace(GOOD[name], **bad)
    steps = instabilities(algorithm)
    if level is None:
        assert distance(algorithm) < 1
        assert steps == ()
        return
    assert not distance(algorithm) < 3
    assert [item.role.name for item in steps] == [level]
    (step,) = steps
    owner, _, field = step.setting.rpartition(".")
    assert step.value == getattr(getattr(algorithm, owner, algorithm), field)
    if owner:
        inner = replace(getattr(algorithm, owner), **{field: step.cure})
        cured = replace(algorithm, **{owner: inner})
    else:
        cured = replace(algorithm, **{field: step.cure})
    assert distance(cured) < 1
    assert f"{step.cure:.2g}" in str(step)


def test_two_steps_that_are_too_large_are_both_named():
    algorithm = replace(GOOD["FedBiO"], **LOWER, **ADJOINT)
    assert [item.role.name for item in instabilities(algorithm)] == [
        "LOWER",
        "ADJOINT",
    ]


@pytest.mark.nightly
def test_the_rate_of_an_optimiser_on_the_server_can_be_too_large():
    def with_rate(rate: float) -> Any:
        return with_server_optimiser(
            GOOD["FedBiO"], optax_optimiser("sgd", learning_rate=rate)
        )

    algorithm = with_rate(1000.0)
    assert not distance(algorithm) < 3
    (step,) = instabilities(algorithm)
    assert (step.role.name, step.value) == ("UPPER", 1000.0)
    assert step.setting == "server_optimiser.learning_rate"
    assert distance(with_rate(step.cure)) < 1
    lower = replace(GOOD["FedBiO"], **LOWER)
    (step,) = instabilities(
        with_server_optimiser(lower, optax_optimiser("sgd", learning_rate=1.0))
    )
    assert step.setting == "lower_rate"


def test_a_warm_start_can_be_what_diverges():
    algorithm = replace(GOOD["LocalBSGM"], warm_start=WarmStart(0.6, exchanges=5))
    (step,) = instabilities(algorithm)
    assert step.setting == "warm_start.learning_rate"
    assert step.cure == pytest.approx(0.25, rel=0.02)


def test_a_device_that_diverges_by_itself_is_named():
    # Curvatures 1, 1, 1 and 40: the mean is 10.75, and 0.18 below 2 / L of the mean.
    def lower(x, y, batch):
        return (batch * (y - x) ** 2).mean() / 2

    def upper(x, y, batch):
        return ((y - batch) ** 2).mean()

    held = [LocalExamples(np.ones(1), np.full(1, c)) for c in (1.0, 1.0, 1.0, 40.0)]
    algorithm = FedBiO(0.09, 0.01, 1.0, 0.1, local_steps=900)
    problem = BilevelProblem(upper, lower)
    whole = Run(problem, algorithm, InMemoryDevices(held), 3.0, 0.0, rounds=10)
    steps = find_instabilities(whole, 3.0, 0.0, rounds=10, seconds=600.0)
    assert [item.role.name for item in steps][:1] == ["LOWER"]
    assert "device 3 diverges" in steps[0].evidence
    assert "L = 40" in steps[0].evidence


def test_an_algorithm_without_these_settings_is_not_judged():
    with pytest.raises(ValueError, match="Survey declares no step size of y"):
        instabilities(Survey())


class Clock:
    """A clock that jumps past every time limit in the second round of a trial."""

    def __init__(self, trial: int) -> None:
        self.trial, self.count, self.now = trial, 0, 0.0

    def monotonic(self) -> float:
        return self.now

    def rounds_of(self, trial: Run) -> Any:
        self.count += 1
        for result in trial.start():
            if self.count == self.trial and result.number == 1:
                self.now = 1e9
            yield result


@pytest.fixture
def cut_short(monkeypatch):
    """Return a function that interrupts a trial, counted from 1."""

    def cut(trial: int) -> None:
        clock = Clock(trial)
        monkeypatch.setattr(Run, "__iter__", lambda trial: clock.rounds_of(trial))
        monkeypatch.setattr(trials, "time", clock)
        monkeypatch.setattr(search, "time", clock)

    return cut


# The trials of SimFBO are y, the adjoint and x.
@pytest.mark.parametrize("trial", [1, 2, 3])
def test_a_trial_that_is_cut_short_is_not_stable(cut_short, trial):
    cut_short(trial)
    with pytest.raises(TimeoutError, match="after 600 seconds without a result"):
        instabilities(GOOD["SimFBO"])


def test_a_trial_that_is_cut_short_is_not_recommended(cut_short):
    cut_short(trial=2)
    (step,) = instabilities(replace(GOOD["FedBiO"], **LOWER))
    assert step.role.name == "LOWER"
    assert isnan(step.cure)
    assert "much lower" in str(step)


def test_an_upper_step_without_a_complete_cure_is_no_other_cause(cut_short):
    cut_short(trial=4)
    with pytest.raises(TimeoutError):
        instabilities(replace(GOOD["FedBiO"], **UPPER))


def cause_at_the_best_point(problem: BilevelProblem) -> str:
    devices, x, y = task()[1:4]
    whole = Run(problem, GOOD["SimFBO"], devices, x, y, rounds=10)
    cause = cause_of(whole, Best(1.0, 7, 7, x, y))
    assert cause is not None
    return cause


def test_a_run_whose_lower_loss_is_not_finite_gets_no_cause_and_ends():
    problem = replace(task().problem, lower_loss=lambda x, y, batch: np.nan * y[0])
    output = "At the best point, after 7 rounds, no step could be tried: lower_loss is"
    assert cause_at_the_best_point(problem).startswith(output)


def test_the_cause_says_that_the_search_ended_without_an_answer(monkeypatch):
    monkeypatch.setattr(causes, "SECONDS", 0.0)
    cause = cause_at_the_best_point(task().problem)
    assert cause.startswith(
        "At the best point, after 7 rounds, the search for a step that was too large "
        "ended after 0 seconds without a result"
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_step_is_blamed_for_a_loss_that_is_not_finite_at_the_start():
    def loss(x: Any, y: Any, batch: Any) -> Any:
        return ((y - x * batch) ** 2).mean()

    def undefined(x: Any, y: Any, batch: Any) -> Any:
        # The first device, on which losses are tried before a run, has no zeros.
        return loss(x, y, batch) / batch.mean()

    held = [LocalExamples(value * np.ones(2), np.ones(2)) for value in (1.0, 0.0)]
    devices = InMemoryDevices(held)
    problem = BilevelProblem(undefined, loss)
    # A device is excluded in every round, which would start a search.
    whole = Run(problem, FedBiO(0.1), devices, 3.0, 0.0, rounds=4)
    assert not find_instabilities(whole, 3.0, 0.0, rounds=4, seconds=600.0)
