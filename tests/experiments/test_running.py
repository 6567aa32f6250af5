"""An experiment gives the same numbers as a run that is set up by hand."""

import numpy as np
import pytest

from fedbilevel import FedBiO, Simulation, UniformSample, run
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.run import run_experiment
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.schema import (
    CheckpointSettings,
    CustomProblem,
    Data,
    Evaluation,
    Experiment,
    Partition,
)
from fedbilevel.metrics import newton_reference, stationarity
from fedbilevel.problems import LossTuning, QuadraticTask
from fedbilevel.tracking import read_records

pytestmark = pytest.mark.slow


@pytest.mark.nightly
@pytest.mark.single_precision
def test_weights_participants_and_seed_reach_the_run_and_what_is_measured(tmp_path):
    experiment = Experiment(
        FedBiO(0.1, batch_size=4),
        problem=LossTuning(),
        data=Data(train_size=90, validation_size=60),
        partition=Partition(devices=4, concentration=0.3),
        rounds=3,
        seed=5,
        participants=2,
        weight_by_size=True,
        evaluation=Evaluation(every=2, metrics=("hypergradient",)),
    )
    *_, last = run_experiment(experiment, tmp_path, resume=False)
    task = build_task(experiment)
    sizes = task.devices.lower_sizes
    assert len(set(sizes.tolist())) > 1
    *_, by_hand = run(
        task.problem,
        experiment.federated_algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=3,
        seed=5,
        participation=UniformSample(2),
        weights=sizes,
    )
    np.testing.assert_array_equal(last.round.y, by_hand.y)
    # The class weights of the upper loss are those of the weighted devices.
    alike = Experiment(**{**vars(experiment), "weight_by_size": False})
    assert task.problem.upper_loss != build_task(alike).problem.upper_loss
    records = list(read_records(tmp_path))
    assert [record.rounds for record in records] == [0, 2, 3]
    assert records[-1].costs == by_hand.costs
    reference = newton_reference(task.problem, task.devices, weights=sizes)
    expected = stationarity(reference, by_hand.x, by_hand.y)
    np.testing.assert_allclose(
        records[-1].metrics["hypergradient"], expected.hypergradient, rtol=1e-6
    )


@pytest.mark.nightly
def test_records_are_the_same_with_rounds_in_one_call_and_without(
    tmp_path, monkeypatch
):
    experiment = Experiment(
        FedBiO(0.1),
        problem=QuadraticTask(devices=4),
        rounds=11,
        participants=3,
        evaluation=Evaluation(every=5),
        checkpoints=CheckpointSettings(every=4),
    )
    lengths = []
    together = Simulation.rounds

    def watched(self, job, first, state, participants):
        lengths.append(len(participants))
        return together(self, job, first, state, participants)

    monkeypatch.setattr(Simulation, "rounds", watched)
    steps = list(run_experiment(experiment, tmp_path / "together", resume=False))
    assert sum(lengths) == 11
    assert max(lengths) > 1
    assert [step.round.number for step in steps if step.record is not None] == [
        4,
        9,
        10,
    ]
    monkeypatch.setattr(Simulation, "rounds_at_once", lambda self, job: 0)
    *_, last = run_experiment(experiment, tmp_path / "alone", resume=False)
    records = [
        [record._replace(seconds=0.0) for record in read_records(tmp_path / directory)]
        for directory in ("together", "alone")
    ]
    assert [record.rounds for record in records[0]] == [0, 5, 10, 11]
    assert records[0] == records[1]
    np.testing.assert_array_equal(steps[-1].round.y, last.round.y)


def test_a_metric_that_is_no_number_is_named(tmp_path):
    file = tmp_path / "custom.py"
    file.write_text(
        "from fedbilevel.problems import quadratic_task, random_quadratic\n"
        "def task():\n"
        "    task = quadratic_task(random_quadratic(devices=2))\n"
        "    return task._replace(metrics={'both': lambda x, y: x})\n"
    )
    experiment = Experiment(FedBiO(0.1), problem=CustomProblem(file), rounds=2)
    with pytest.raises(ValueError, match="Metric 'both' returned an array of sh"):
        list(run_experiment(experiment, tmp_path / "run", resume=False))


@pytest.mark.nightly
@pytest.mark.single_precision
def test_a_run_that_was_killed_after_its_last_record_still_writes_its_solution(
    tmp_path,
):
    experiment = Experiment(FedBiO(0.1), partition=Partition(devices=2), rounds=2)
    *_, last = run_experiment(experiment, tmp_path, resume=False)
    (tmp_path / SOLUTION).unlink()
    *_, again = run_experiment(experiment, tmp_path, resume=True)
    np.testing.assert_array_equal(again.round.x, last.round.x)
    with np.load(tmp_path / SOLUTION) as solution:
        np.testing.assert_array_equal(solution["x"], last.round.x)
