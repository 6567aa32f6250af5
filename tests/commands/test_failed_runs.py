"""Failed runs: stored in their directory, and reported by every command."""

import json
from pathlib import Path

import pytest

from fedbilevel.__main__ import main
from fedbilevel.experiments.run_directory.failures import read_failure
from tests.commands.seeds import FAILING, written

pytestmark = [pytest.mark.single_precision, pytest.mark.slow]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that fails."""
    directory = tmp_path_factory.mktemp("failed")
    file = written(directory)
    run = directory / "runs" / "failing"
    options = ["--seed", str(FAILING), "--directory", str(run), "--json"]
    assert main(["run", str(file), *options]) != 0
    return run


@pytest.mark.slow
def test_the_reason_is_stored_with_the_run(failed):
    failure = read_failure(failed)
    assert failure is not None
    assert "Round 1, exchange 0: 0 of 1 uploads" in failure.reason
    records = (failed / "metrics.jsonl").read_text().splitlines()
    assert failure.rounds == json.loads(records[-1])["rounds"]


def test_resume_does_not_repeat_a_failure(failed, capsys):
    assert main(["resume", str(failed)]) == 2
    output = capsys.readouterr().err
    assert f"The run in {failed} failed, last measured after" in output
    assert "0 of 1 uploads were accepted: upload is not finite" in output
    assert "engine:DebugSimulation" in output


def test_plot_draws_what_there_is_and_names_the_reason(failed, tmp_path, capsys):
    failure = read_failure(failed)
    assert failure is not None
    assert main(["plot", str(failed), "--out", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr()
    assert failure.reason in output.err
    assert Path(json.loads(output.out)["pictures"][0]).exists()
    page = (tmp_path / "report.html").read_text()
    assert "Failed, last measured after" in page
    assert "Finished after" not in page
