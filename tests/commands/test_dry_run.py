"""`fedbilevel run --dry-run` prints the costs of the run without running it."""

import json

import pytest

from fedbilevel.__main__ import main
from fedbilevel.tracking.records import read_records
from tests.commands.typing_in import QUICK

pytestmark = pytest.mark.single_precision


def test_the_predicted_costs_are_those_of_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").write_text(QUICK)
    command = ["run", "quick.toml", "--rounds", "3", "--participants", "2", "--json"]
    assert main([*command, "--dry-run"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "runs").exists()
    assert predicted["settings"]["rounds"] == 3
    assert predicted["participants"] == 2
    assert not predicted["directory_in_use"]
    assert main(command) == 0
    costs = list(read_records(tmp_path / predicted["directory"]))[-1].costs
    names = ("upper_samples", "lower_samples", "exchanges", "bytes_down", "bytes_up")
    assert {name: predicted[name] for name in names} == {
        name: getattr(costs, name) for name in names
    }


def test_the_text_names_settings_costs_and_a_directory_in_use(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").write_text(QUICK)
    (tmp_path / "runs" / "quick").mkdir(parents=True)
    (tmp_path / "runs" / "quick" / "experiment.toml").write_text(QUICK)
    assert main(["run", "quick.toml", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "runs/quick (holds a run already)" in text
    assert "algorithm.learning_rate" in text
    assert "Dry run: no round was run and nothing was written." in text


def test_more_participants_than_devices_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").write_text(QUICK)
    assert main(["run", "quick.toml", "--participants", "99", "--dry-run"]) == 2
    assert "participants is 99, but there are" in capsys.readouterr().err
