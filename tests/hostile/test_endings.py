"""Runs without their directory, without disk space, or interrupted: their messages."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from fedbilevel import CheckpointError, Checkpoints, Costs, FedBiO, run
from fedbilevel.__main__ import main
from fedbilevel.atomic_write import atomic_replace
from fedbilevel.commands.display import live
from fedbilevel.experiments.run import run_experiment
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.outputs import CheckpointSettings, Evaluation
from fedbilevel.terminal import printable_streams
from fedbilevel.tracking.records import RECORDS, Journal, MovedError, Record
from tests import quadratic
from tests.engines import federation
from tests.hostile.directories import EXPERIMENT, PROBLEM


@pytest.mark.slow
@pytest.mark.single_precision
@pytest.mark.parametrize("recreated", [True, False])
def test_a_run_whose_directory_is_moved_writes_nothing_to_the_old_path(
    recreated, tmp_path
):
    directory, away = tmp_path / "first", tmp_path / "away"
    experiment = Experiment(
        FedBiO(0.1),
        rounds=6,
        evaluation=Evaluation(every=2, baseline=False),
        checkpoints=CheckpointSettings(every=6),
    )
    steps = run_experiment(experiment, directory, resume=False)
    next(steps)
    directory.rename(away)
    if recreated:
        shutil.copytree(away, directory)
        (directory / SOLUTION).write_text("another run's")
    before = sorted(directory.rglob("*"))
    with pytest.raises((MovedError, CheckpointError), match="was moved or replaced"):
        list(steps)
    assert sorted(directory.rglob("*")) == before
    assert not recreated or (directory / SOLUTION).read_text() == "another run's"
    assert len((away / RECORDS).read_text().splitlines()) == 1


@pytest.mark.slow
def test_checkpoints_are_not_written_into_another_directory_of_the_name(tmp_path):
    checkpoints = Checkpoints(tmp_path / "saved", every=1)
    parts = quadratic.problem(), FedBiO(0.1), federation.in_memory()
    rounds = run(*parts, *federation.START, rounds=9, checkpoints=checkpoints)
    for _ in range(3):
        next(rounds)
    (tmp_path / "saved").rename(tmp_path / "away")
    (tmp_path / "saved").mkdir()
    # The error is the same if a checkpoint was being written at that time.
    with pytest.raises(CheckpointError, match="saved was moved or replaced"):
        list(rounds)
    names = [path.name for path in (tmp_path / "saved").iterdir()]
    assert not [name for name in names if "tmp" not in name]


def test_a_journal_on_a_full_disk_names_its_file(tmp_path):
    with Journal(tmp_path, first=0) as journal:
        journal._file.close()
        os.replace(tmp_path / RECORDS, tmp_path / "old")
        (tmp_path / RECORDS).symlink_to("/dev/full")
        journal._file = (tmp_path / RECORDS).open("a")
        with pytest.raises(OSError, match="No space left") as caught:
            journal.write(Record(0, 0.0, Costs(), {}))
        assert caught.value.filename == str(tmp_path / RECORDS)
        assert caught.value.errno == errno.ENOSPC
        # The rest of the buffer cannot be written either.
        with suppress(OSError):
            journal._file.close()


def test_a_draft_that_cannot_be_written_is_named(tmp_path):
    with (
        pytest.raises(OSError, match="No space") as caught,
        atomic_replace(tmp_path / "a"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "unfinished-a")


@pytest.mark.process
def test_an_output_that_cannot_be_written_is_reported():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "fedbilevel", "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        "fedbilevel doctor: A file or the output of this command cannot be used: No "
        "space left on device. Free some space on that disk."
    )


@pytest.mark.process
def test_no_number_of_interruptions_prints_a_traceback(tmp_path):
    (tmp_path / "problem.py").write_text(PROBLEM.replace("METRIC", "1.0"))
    text = EXPERIMENT.replace("rounds = 4", "rounds = 1000000")
    (tmp_path / "a.toml").write_text(text)
    command = [sys.executable, "-m", "fedbilevel", "run", "a.toml"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "runs" / "a" / RECORDS).exists():
            assert process.poll() is None
            time.sleep(0.05)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        assert process.stderr is not None
        errors = process.stderr.read()
    assert "Traceback" not in errors, errors
    assert process.returncode == 130
    assert "Stopping after this round" in errors


def test_lines_that_renew_themselves_show_escapes_and_obey_none(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    evil = "\x1b]0;owned\x07"
    with printable_streams(), live(lambda: [("site", f"refused: {evil}")]):
        print(f"printed: {evil}", file=sys.stderr)
    shown = terminal.getvalue()
    assert evil not in shown
    assert "\x07" not in shown
    assert r"refused: \x1b]0;owned\x07" in shown
    assert r"printed: \x1b]0;owned\x07" in shown
    # The display itself uses escape sequences.
    assert "\x1b[?25l" in shown


def test_a_person_is_asked_before_a_received_file_is_executed(
    tmp_path, monkeypatch, capsys
):
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    received = tmp_path / "received"
    received.mkdir()
    source = "import pathlib\npathlib.Path('executed').touch()\nraise ValueError(7)"
    (received / "problem.py").write_text(source)
    (received / "experiment.toml").write_text(EXPERIMENT)

    def answer(text: str) -> str:
        screen = Screen()
        monkeypatch.setattr(sys, "stdin", Keyboard(text))
        monkeypatch.setattr(sys, "stderr", screen)
        assert main(["diagnose", "received"]) == 2
        return screen.getvalue()

    for refusal in ("n\n", "\n", ""):
        shown = answer(refusal)
        assert "names the problem file" in shown
        assert "Execute it? [y/N]" in shown
        assert "was not executed" in shown
        assert not (tmp_path / "executed").exists()
    assert "ValueError: 7" in answer("y\n")
    assert (tmp_path / "executed").exists()
    # The file is allowed now, until it is changed.
    assert "Execute it?" not in answer("")
    (received / "problem.py").write_text("raise ValueError(8)")
    assert "Execute it?" in answer("n\n")
