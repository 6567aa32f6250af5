"""Tests of the benchmark of utility under noise, and of its published values."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import experiment, private_tasks
from fedbilevel import AutoFedBiO, FedBiO, LocalBSGM, NeumannSeries, UniformSample, run
from fedbilevel.privacy import GaussianRelease, WithoutReplacement, spent
from fedbilevel.problems import quadratic_task, random_quadratic

SETTING = private_tasks.FULL._replace(rounds=6, share=0.25)
TASK = quadratic_task(random_quadratic(devices=8))


def make_case():
    # Only the devices and the problem decide the noise.
    return private_tasks.Case(TASK, TASK, None, None, 2, 0.1, 1.0)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["8", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedBiO(0.1),
        pytest.param(LocalBSGM(0.1, NeumannSeries(2, 0.1)), marks=pytest.mark.nightly),
        pytest.param(AutoFedBiO(6), marks=pytest.mark.nightly),
    ],
)
def test_a_run_of_the_benchmark_spends_its_level(algorithm, level):
    case = make_case()
    private = private_tasks.private(algorithm, case, level, SETTING)
    *_, last = run(
        TASK.problem,
        private,
        TASK.devices,
        TASK.x,
        TASK.y,
        rounds=SETTING.rounds,
        participation=UniformSample(2),
    )
    assert last.epsilon is not None
    assert 0.99 * float(level) < last.epsilon <= float(level)


def test_the_multiplier_of_one_exchange_is_the_accountants():
    multiplier = private_tasks.noise_of(FedBiO(0.1), make_case(), "4", SETTING)
    release = GaussianRelease(multiplier, WithoutReplacement(2, 8))
    assert spent({release: 6}, private_tasks.DELTA) == pytest.approx(4, rel=1e-3)


def test_without_noise_nothing_is_clipped():
    algorithm = FedBiO(0.1)
    level = private_tasks.NO_NOISE
    assert private_tasks.private(algorithm, make_case(), level, SETTING) is algorithm


def test_a_text_has_students_interval_or_the_number_of_failures():
    values = [0.7, 0.8, 0.75, 0.72]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    text = private_tasks.text_of({"metrics": values})
    assert text == f"{(low + high) / 2:.3f} ± {(high - low) / 2:.3f}"
    assert private_tasks.text_of({"metrics": [0.5, float("nan")]}) == "1 of 2 failed"


@pytest.mark.slow
def test_the_published_table_is_that_of_the_published_cells(tmp_path):
    results = experiment.published_cells(private_tasks.PUBLISHED)
    setting = private_tasks.FULL
    private_tasks.report(results, tuple(setting.devices), setting, tmp_path)
    for name in ("private-tasks.csv", "private-tasks.md"):
        ours, published = tmp_path / name, experiment.RESULTS / name
        # Before a task has all cells there is no table.
        assert ours.exists() == published.exists()
        if ours.exists():
            assert ours.read_text() == published.read_text()


def test_a_task_without_all_cells_is_left_out(tmp_path):
    setting, name = private_tasks.FAST, "regularisation-adult"
    cell = {"metrics": [0.7, 0.8], "multiplier": 2.0}
    cells = dict.fromkeys(private_tasks.runs_of((name,), setting, {}), cell)
    results = {f"{name}.public": {"metric": 0.6}, **cells}
    private_tasks.report(results, (name, "cleaning-mnist"), setting, tmp_path)
    text = (tmp_path / "private-tasks.md").read_text()
    assert "regularisation-adult" in text
    assert "cleaning-mnist" not in text
