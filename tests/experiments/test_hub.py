"""An experiment file with a data set in the hub's layout, in a directory beside it."""

import json

import numpy as np
import pytest

from fedbilevel import FedBiO, datasets
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.schema import Data, Experiment, Partition
from fedbilevel.experiments.split_data import split_data
from tests.commands.typing_in import fedbilevel

FILE = """
rounds = 2

[algorithm]
name = "FedBiO"
learning_rate = {schedule = "linear_schedule", init_value = 0.1, end_value = 0.0, transition_steps = 8}
batch_size = 4

[data]
name = "hub"
path = "small-digits"
label = "digit"
validation_size = 60

[partition]
devices = 3
"""  # noqa: E501
HUB = Data("hub", path="a/b", features=("u", "v"), label="w", splits=("one", "two"))


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Return a directory with an experiment file and images of digits."""
    import datasets as hf

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    features = hf.Features(
        {"image": hf.Image(), "digit": hf.ClassLabel(num_classes=10)}
    )
    for split, part in zip(("train", "test"), datasets.digits()[:2], strict=True):
        pixels = np.rint(part.features[:300].reshape(-1, 8, 8) * 255).astype(np.uint8)
        rows = {"image": list(pixels), "digit": part.labels[:300]}
        hf.Dataset.from_dict(rows, features).to_parquet(
            tmp_path / "small-digits" / "data" / f"{split}-00000-of-00001.parquet"
        )
    (tmp_path / "first.toml").write_text(FILE)
    return tmp_path


@pytest.mark.nightly
def test_an_experiment_over_a_directory_in_the_hubs_layout_runs(directory, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = fedbilevel(directory, f"run {directory / 'first.toml'} --json")
    *_, last, baseline = map(json.loads, result.stdout.splitlines())
    assert baseline["baseline"]["rounds"] == 2
    assert last["rounds"] == 2
    assert 0 < last["metrics"]["loss"] < 2.3  # of guessing: log 10
    # The copy in the run directory has the absolute path.
    copy = read_experiment(directory / "runs" / "first" / "experiment.toml")
    assert copy.data.path == str(directory / "small-digits")
    split, *_ = split_data(copy.data, copy.partition)
    assert len(split.training_rows) == 3
    assert split.training.features.shape == (240, 64)
    assert split.validation.features.shape == (60, 64)
    assert split.test.features.shape == (300, 64)


def test_the_fields_of_the_hub_are_written_and_read_the_same(tmp_path):
    experiment = Experiment(FedBiO(0.1), data=HUB)
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment


def test_the_fields_of_the_hub_are_options():
    options = "--data.name hub --data.path a/b --data.label w --data.features u v"
    options += " --data.splits one two"
    experiment = Experiment(FedBiO(0.1))
    assert with_overrides(experiment, options.split(), "fedbilevel run").data == HUB


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('path = "small-digits"', "", 'name is "hub"; give the name'),
        (
            'name = "hub"',
            'name = "digits"',
            'data.path: this key applies only if name is "hub"',
        ),
        ('name = "hub"', 'name = "hubb"', "did you mean hub?"),
    ],
)
def test_a_wrong_combination_is_refused_in_a_sentence(old, new, message, tmp_path):
    (tmp_path / "first.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ExperimentError) as caught:
        read_experiment(tmp_path / "first.toml")
    assert message in str(caught.value)


def test_more_examples_than_the_hubs_set_has_are_refused_with_its_path(directory):
    data = Data(
        "hub", path=str(directory / "small-digits"), label="digit", train_size=1000
    )
    with pytest.raises(ValueError, match="small-digits has 300"):
        split_data(data, Partition(devices=2))
