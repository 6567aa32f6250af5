"""A learning rate of an experiment file may be a schedule of optax."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import FedBiO, LocalBSGM, NeumannSeries, WarmStart, optax_schedule
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.schema import Experiment

COSINE = '{schedule = "cosine_decay_schedule", init_value = 0.1, decay_steps = 1000}'
FILE = f"""
[algorithm]
name = "FedBiO"
learning_rate = {COSINE}
"""
RATE = optax_schedule("cosine_decay_schedule", init_value=0.1, decay_steps=1000)
NESTED = optax_schedule(
    "join_schedules",
    schedules=[
        {
            "schedule": "piecewise_constant_schedule",
            "init_value": 0.1,
            "boundaries_and_scales": {10: 0.5, 200: 0.1},
        },
        {"schedule": "exponential_decay", "init_value": 0.1, "transition_steps": 5}
        | {"decay_rate": 0.9, "staircase": True},
    ],
    boundaries=[300],
)


def read(text: str, directory: Path) -> Experiment:
    file = directory / "experiment.toml"
    file.write_text(text)
    return read_experiment(file)


def test_a_file_names_a_schedule_of_optax(tmp_path):
    assert read(FILE, tmp_path) == Experiment(FedBiO(RATE))


def test_the_same_schedule_may_be_a_separate_table(tmp_path):
    text = """
    [algorithm]
    name = "FedBiO"
    [algorithm.learning_rate]
    schedule = "cosine_decay_schedule"
    decay_steps = 1000
    init_value = 0.1
    """
    assert read(text, tmp_path) == Experiment(FedBiO(RATE))


@pytest.mark.parametrize("rate", [RATE, NESTED], ids=["flat", "nested"])
def test_a_schedule_that_is_written_reads_the_same(rate, tmp_path):
    warm = WarmStart(rate, exchanges=3)
    experiment = Experiment(LocalBSGM(rate, NeumannSeries(5, 0.3), warm_start=warm))
    write_experiment(experiment, tmp_path / "again.toml")
    again = read_experiment(tmp_path / "again.toml")
    assert again == experiment
    assert hash(again.algorithm) == hash(experiment.algorithm)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cosine_decay_s", "cosine_s", "did you mean cosine_decay_schedule?"),
        ("decay_steps", "decay_step", "no argument decay_step; did you mean decay_ste"),
        (", decay_steps = 1000", "", "needs the argument decay_steps."),
        ("decay_steps = 1000", "decay_steps = -1", "rejects its arguments"),
        ("init_value = 0.1", 'init_value = "a"', "rejects its arguments"),
        ('"cosine_decay_schedule"', "3", "expected the name of an optax schedule"),
    ],
)
def test_a_mistake_in_a_schedule_is_reported_with_its_line(old, new, message, tmp_path):
    assert FILE.count(old) == 1
    with pytest.raises(ExperimentError) as caught:
        read(FILE.replace(old, new), tmp_path)
    assert "line 4: algorithm.learning_rate: " in str(caught.value)
    assert message in str(caught.value)


def test_a_schedule_is_an_option():
    options = ["--algorithm.learning-rate", COSINE]
    experiment = Experiment(FedBiO(0.3))
    assert with_overrides(experiment, options, "fedbilevel run").algorithm == FedBiO(
        RATE
    )


@pytest.mark.parametrize("rate", [RATE, NESTED], ids=["flat", "nested"])
def test_a_schedule_of_the_file_stays_if_another_field_is_changed(rate):
    experiment = Experiment(FedBiO(rate))
    changed = with_overrides(experiment, ["--rounds", "3"], "fedbilevel run")
    assert changed == replace(experiment, rounds=3)


def test_a_misspelt_schedule_on_the_command_line_is_refused():
    options = ["--algorithm.learning-rate", COSINE.replace("cosine_decay", "cosine")]
    with pytest.raises(ValueError, match=r"did you mean cosine_decay_schedule\?"):
        with_overrides(Experiment(FedBiO(0.3)), options, "fedbilevel run")
