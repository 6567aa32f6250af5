"""Metrics by name: in experiment files, of plug-ins and of tasks."""

import logging
from typing import NamedTuple

import pytest

import fedbilevel.plugins
from fedbilevel import FedBiO
from fedbilevel.experiments.measure import measurements
from fedbilevel.experiments.schema import Evaluation, Experiment
from fedbilevel.experiments.tuning import Goal, goal_of, score_of
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.metrics import Metric, metric, registry
from fedbilevel.metrics.stationarity import stationarity
from fedbilevel.problems import quadratic_task, random_quadratic

pytestmark = pytest.mark.single_precision

QUADRATIC = random_quadratic(devices=2)
TASK = quadratic_task(QUADRATIC)
SIZE = Metric("size", "‖y‖²", False, lambda point: (point.y @ point.y) + 2.0)


class Point(NamedTuple):
    """An entry point of an installed package."""

    name: str
    metric: object
    value: str = "package:METRIC"

    def load(self):
        return self.metric


@pytest.fixture
def plugins(monkeypatch):
    """Installed packages with the metric "size", one of a taken name, and no metric."""
    points = Point("size", SIZE), Point("loss", SIZE), Point("broken", len)
    monkeypatch.setattr(fedbilevel.plugins, "entry_points", lambda group: points)
    registry.list_metrics.cache_clear()
    yield
    registry.list_metrics.cache_clear()


def test_a_plug_in_is_measured_where_it_is_named_and_bad_ones_are_ignored(
    plugins, caplog
):
    with caplog.at_level(logging.WARNING):
        evaluation = Evaluation(metrics=("size",))
    assert "package:METRIC is ignored: another metric has this name" in caplog.text
    assert "is ignored: it is not a fedbilevel.metrics.Metric" in caplog.text
    measure = measurements(TASK, None, evaluation.metrics)
    assert measure(TASK.x, TASK.y)["size"] == 2.0
    assert "size" not in measurements(TASK, None)(TASK.x, TASK.y)
    assert registry.title_of("size") == "‖y‖²"


def test_metrics_of_stationarity_solve_for_y_once(monkeypatch):
    reference, points = QUADRATIC.reference(), []

    def solve(x, near):
        points.append(x)
        return reference.lower_solution(x, near)

    counted = reference._replace(lower_solution=solve)
    monkeypatch.setattr(metric, "newton_reference", lambda *_, **__: counted)
    names = ["hypergradient", "lower_error"]
    values = measurements(TASK, None, names)(TASK.x, TASK.y)
    assert list(values) == ["loss", "training_loss", "distance", *names]
    assert len(points) == 1
    expected = stationarity(reference, TASK.x, TASK.y)
    assert tuple(values[name] for name in names) == expected


def test_a_search_measures_a_metric_of_an_import_path():
    path = f"{__name__}:SIZE"
    file = Experiment(FedBiO(0.1), evaluation=Evaluation(metrics=(path, "lower_error")))
    goal = Goal("size", maximise=True)
    assert goal_of(file, "size", maximise=True) == (goal, (path,))
    assert goal_of(Experiment(FedBiO(0.1)), path, maximise=True) == (goal, (path,))
    assert goal_of(file, "loss") == (Goal("loss"), ())
    measure = measurements(TASK, None, (path,))
    assert score_of(measure, TASK.x, TASK.y, goal)(TASK.x, TASK.y) == -2.0


@pytest.mark.parametrize("name", ["loss", "lower_eror"])
def test_a_name_that_cannot_be_given_is_an_error_of_its_key(name):
    with pytest.raises(SettingError, match=f"metrics: '{name}' is not a m") as error:
        Evaluation(metrics=(name,))
    assert error.value.field == "metrics"


def test_a_task_may_not_hide_a_metric():
    task = TASK._replace(metrics={"loss": lambda x, y: 0.0})
    with pytest.raises(ValueError, match="the task: loss is taken"):
        measurements(task, None)


def test_an_import_path_is_not_followed_by_reading_a_file():
    path = "no_such_module:METRIC"
    with pytest.raises(ValueError, match="cannot be imported"):
        measurements(TASK, None, Evaluation(metrics=(path,)).metrics)


FAKE_LOSS = Metric("loss", "loss", False, lambda point: 42.0)
OTHER_SIZE = Metric("size", "size", False, lambda point: 1.0)


@pytest.mark.parametrize("second", ["FAKE_LOSS", "OTHER_SIZE"])
def test_two_metrics_of_one_name_are_refused(second, plugins):
    names = "size", f"{__name__}:{second}"
    with pytest.raises(ValueError, match=r"evaluation.metrics: \w+ is taken"):
        measurements(TASK, None, names)


FAILS = Metric("fails", "fails", False, lambda point: float("no number"))


def test_a_metric_that_fails_is_named():
    measure = measurements(TASK, None, (f"{__name__}:FAILS",))
    with pytest.raises(ValueError, match=r"Metric 'fails' failed.*ValueError"):
        measure(TASK.x, TASK.y)
