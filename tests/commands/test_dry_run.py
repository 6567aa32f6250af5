"""`fedbilevel run --dry-run` prints the costs of the run without running it."""

import json

import pytest

from fedbilevel.__main__ import main
from fedbilevel.experiments.baseline import read_baseline
from fedbilevel.tracking.records import read_records
from tests.commands.typing_in import QUICK

pytestmark = [pytest.mark.single_precision, pytest.mark.slow]


COSTS = ("upper_samples", "lower_samples", "exchanges", "bytes_down", "bytes_up")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").write_text(QUICK)
    return tmp_path


def costs_of(record):
    return {name: getattr(record.costs, name) for name in COSTS}


# A batch may have more examples than a device: examples are drawn with replacement.
SHORT = ["run", "quick.toml", "--rounds", "2", "--algorithm.batch-size", "99"]


@pytest.mark.nightly
def test_the_predicted_costs_are_those_of_the_run_and_its_baseline(here, capsys):
    command = [*SHORT, "--participants", "2", "--json"]
    command += ["--server-optimiser", '{ name = "sgd", learning_rate = 1.0 }']
    assert main([*command, "--dry-run"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert not (here / "runs").exists()
    assert predicted["settings"]["rounds"] == 2
    assert predicted["participants"] == 2
    assert not predicted["directory_in_use"]
    assert main(command) == 0
    directory = here / predicted["directory"]
    last = list(read_records(directory))[-1]
    assert {name: predicted[name] for name in COSTS} == costs_of(last)
    baseline = read_baseline(directory)
    assert baseline is not None
    assert predicted["baseline"] == costs_of(baseline)


@pytest.mark.parametrize(
    ("option", "is_expected"),
    [
        ("--evaluation.baseline", True),
        ("--evaluation.no-baseline", False),
        ("--algorithm.upper-rate=0", False),
    ],
)
def test_text_and_json_have_costs_of_the_baseline_if_the_run_trains_it(
    option, is_expected, here, capsys
):
    assert main(["run", "quick.toml", "--dry-run", option]) == 0
    text = capsys.readouterr().out
    assert ("\nbaseline without tuning " in text) == is_expected
    assert main(["run", "quick.toml", "--dry-run", "--json", option]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert (predicted["baseline"] is not None) == is_expected


@pytest.mark.nightly
def test_a_directory_in_use_is_refused_as_by_the_run_after_the_costs(here, capsys):
    command = [*SHORT, "--evaluation.no-baseline"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "runs/quick already has a finished run" in refusal
    assert main([*command, "--dry-run"]) == 2
    text = capsys.readouterr()
    assert text.err == f"{refusal}\n"
    assert "runs/quick (has a run already)" in text.out
    assert "algorithm.learning_rate" in text.out
    assert "Dry run: no round was run and nothing was written." in text.out
    assert main([*command, "--dry-run", "--json"]) == 2
    answer = capsys.readouterr()
    assert answer.err == text.err
    assert json.loads(answer.out)["directory_in_use"]


def test_a_directory_without_checkpoints_is_not_in_use(here, capsys):
    # As after a run that was killed before its first checkpoint: `run` starts again.
    (here / "runs" / "quick").mkdir(parents=True)
    (here / "runs" / "quick" / "experiment.toml").write_text(QUICK)
    assert main(["run", "quick.toml", "--dry-run"]) == 0
    assert "already" not in capsys.readouterr().out
    assert main([*SHORT, "--evaluation.no-baseline"]) == 0


def test_more_participants_than_devices_are_refused(here, capsys):
    assert main(["run", "quick.toml", "--participants", "99", "--dry-run"]) == 2
    assert "participants is 99, but there are" in capsys.readouterr().err
