"""Missing runs of a comparison, and runs that --force replaces."""

import shutil
from pathlib import Path

import pytest

from fedbilevel import Costs
from fedbilevel.commands.jobs import jobs_of, missing_of
from fedbilevel.experiments.run_directory.failures import Failure, write_failure
from fedbilevel.experiments.run_directory.layout import RUN
from fedbilevel.experiments.run_directory.runs import discard, keep
from fedbilevel.tracking.records import Journal, Record

pytestmark = pytest.mark.slow

TEXT = """
rounds = 4
[algorithm]
name = "FedBiO"
learning_rate = 0.1
"""


def written(directory: Path, name: str = "a", text: str = TEXT) -> Path:
    file = directory / f"{name}.toml"
    file.write_text(text)
    return file


def make(file: Path, seeds: int, rounds: int = 4) -> list[Path]:
    """Write the run directories of a file; return them."""
    jobs = jobs_of(file, seeds)
    for job in jobs:
        keep(job.experiment, job.directory)
        with Journal(job.directory, first=0) as journal:
            journal.write(Record(rounds, 0.1, Costs(), {"loss": 1.0}))
    return [job.directory for job in jobs]


def missing(file: Path, seeds: int, force: bool = False) -> list[tuple[str, bool]]:
    jobs = missing_of(jobs_of(file, seeds), force)
    return [(job.directory.name, job.replaces) for job in jobs]


def test_runs_that_are_finished_or_failed_are_not_made_again(tmp_path):
    file = written(tmp_path)
    directories = make(file, 3)
    write_failure(directories[1], Failure(2, "no uploads"))
    assert missing(file, 4) == [("a-seed-3", False)]
    assert missing(file, 4, force=True) == [("a-seed-1", True), ("a-seed-3", False)]


def test_a_run_that_stopped_is_resumed(tmp_path):
    file = written(tmp_path)
    make(file, 1, rounds=2)
    assert missing(file, 1) == [("a", False)]
    assert missing(file, 1, force=True) == [("a", False)]


def test_an_edited_file_is_refused_with_both_values_and_the_cure(tmp_path):
    file = written(tmp_path)
    make(file, 2)
    written(tmp_path, text=f"norm_limit = 8\n{TEXT}".replace("0.1", "0.3"))
    with pytest.raises(ValueError, match="--force") as refused:
        missing(file, 2)
    output = str(refused.value)
    assert "runs/a, " in output.replace(f"{tmp_path}/", "")
    assert "algorithm.learning_rate 0.1 → 0.3" in output
    assert "norm_limit unset → 8.0" in output
    assert missing(file, 2, force=True) == [("a", True), ("a-seed-1", True)]


def test_an_edited_problem_is_noticed(tmp_path):
    problem_file = tmp_path / "own.py"
    problem_file.write_text("rate = 0.1")
    text = f'{TEXT}[problem]\nname = "CustomProblem"\nfile = "own.py"\n'
    file = written(tmp_path, text=text)
    make(file, 1)
    assert missing(file, 1) == []
    problem_file.write_text("rate = 0.2")
    with pytest.raises(ValueError, match="the problem file was edited"):
        missing(file, 1)
    assert missing(file, 1, force=True) == [("a", True)]


def test_a_tracker_does_not_make_another_run(tmp_path):
    file = written(tmp_path)
    make(file, 1)
    written(tmp_path, text=f"{TEXT}[tracking]\ntensorboard = true\n")
    assert missing(file, 1) == []


def test_the_directory_of_another_file_is_never_replaced(tmp_path):
    make(written(tmp_path, "a-seed-1"), 1)
    with pytest.raises(ValueError, match=r"run directory of .*a-seed-1\.toml"):
        missing(written(tmp_path, "a"), 2, force=True)
    pointing = f'directory = "runs/a-seed-1"\n{TEXT}'
    with pytest.raises(ValueError, match=r"run directory of .*a-seed-1\.toml"):
        missing(written(tmp_path, "b", pointing), 1, force=True)


def test_two_files_cannot_ask_for_different_runs_in_one_directory(tmp_path):
    first = written(tmp_path, "a", f'directory = "here"\n{TEXT}')
    second = written(tmp_path, "b", f'directory = "here"\n{TEXT}'.replace("0.1", "0.2"))
    jobs = jobs_of(first, 1) + jobs_of(second, 1)
    with pytest.raises(ValueError, match=r"learning_rate 0\.1 → 0\.2"):
        missing_of(jobs, force=True)
    assert len(missing_of(jobs[:1] * 2, force=False)) == 1


def test_discarding_a_run_leaves_what_is_not_of_a_run(tmp_path):
    (directory,) = make(written(tmp_path), 1)
    (directory / "checkpoints" / "round_2").mkdir(parents=True)
    (directory / "notes.txt").write_text("mine")
    write_failure(directory, Failure(2, "no uploads"))
    discard(directory)
    left = {file.name for file in directory.iterdir()}
    assert left - {".lock"} == {"notes.txt"}


def test_a_directory_that_is_no_run_and_a_run_across_sites_are_not_discarded(tmp_path):
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not a run directory"):
        discard(tmp_path / "mine")
    assert (tmp_path / "mine" / "checkpoints").exists()
    (directory,) = make(written(tmp_path), 1)
    before = shutil.copytree(directory, tmp_path / "before")
    (directory / RUN).write_text("1234")
    with pytest.raises(ValueError, match="run across sites"):
        discard(directory)
    for file in before.iterdir():
        assert (directory / file.name).read_bytes() == file.read_bytes()
