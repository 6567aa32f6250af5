"""Runs that lose their directory, their disk or their patience end in a sentence."""

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
from fedbilevel.commands.live import live
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
def test_a_run_whose_folder_is_moved_away_writes_nothing_in_its_place(
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
def test_checkpoints_are_not_written_into_another_folder_of_the_name(tmp_path):
    kept = Checkpoints(tmp_path / "kept", every=1)
    what = quadratic.problem(), FedBiO(0.1), federation.in_memory()
    rounds = run(*what, *federation.START, rounds=9, checkpoints=kept)
    for _ in range(3):
        next(rounds)
    (tmp_path / "kept").rename(tmp_path / "away")
    (tmp_path / "kept").mkdir()
    # Also where one was being written meanwhile, and fails by itself.
    with pytest.raises(CheckpointError, match="kept was moved or replaced"):
        list(rounds)
    assert not [one for one in (tmp_path / "kept").iterdir() if "tmp" not in one.name]


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
        # What is left in its buffer has nowhere to go.
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
def test_an_output_that_cannot_be_written_is_told():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedbilevel", "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
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
        said = process.stderr.read()
    assert "Traceback" not in said, said
    assert process.returncode == 130
    assert "Stopping after this round" in said


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
    # Its own escapes it needs.
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

    def answered(words: str) -> str:
        screen = Screen()
        monkeypatch.setattr(sys, "stdin", Keyboard(words))
        monkeypatch.setattr(sys, "stderr", screen)
        assert main(["diagnose", "received"]) == 2
        return screen.getvalue()

    for refusal in ("n\n", "\n", ""):
        said = answered(refusal)
        assert "names the problem file" in said
        assert "Execute it? [y/N]" in said
        assert "was not executed" in said
        assert not (tmp_path / "executed").exists()
    assert "ValueError: 7" in answered("y\n")
    assert (tmp_path / "executed").exists()
    # It is known now, until somebody changes it.
    assert "Execute it?" not in answered("")
    (received / "problem.py").write_text("raise ValueError(8)")
    assert "Execute it?" in answered("n\n")
