"""Parallel runs: an error ends only its run, and Ctrl-C stops all of them.

Processes are real, and what they carry out is not: a program that needs no JAX takes a
tenth of a second to start.
"""

import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import FedBiO
from fedbilevel.commands import batch, worker
from fedbilevel.commands.batch import processes_for, run_batch
from fedbilevel.commands.batch_progress import BatchProgress
from fedbilevel.commands.jobs import Job
from fedbilevel.commands.worker_pool import WorkerPool
from fedbilevel.experiments.run_directory.failures import (
    Failure,
    read_failure,
    write_failure,
)
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.runs import keep, read_run_experiment
from fedbilevel.experiments.schema import Experiment, Sharded

pytestmark = pytest.mark.process

# The directory name selects the behaviour: fine, killed, ended, silent, refused, failed
# or endless.
PROGRAM = r"""
import json, os, signal, sys, time
RECORD = {"rounds": 4, "seconds": 1.0, "upper_samples": 1, "lower_samples": 1,
          "exchanges": 4, "bytes_down": 1, "bytes_up": 1, "metrics": {"loss": 0.5}}
for line in sys.stdin:
    directory = json.loads(line)
    name = os.path.basename(directory)
    with open(directory + "/process", "w") as file:
        file.write(str(os.getpid()))
    code = 0
    if name.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif name.startswith("ended"):
        os._exit(7)
    elif name.startswith("silent"):
        code = 2
    elif name.startswith("refused"):
        print("fedbilevel resume: no data\nput them there", file=sys.stderr)
        code = 2
    elif name.startswith("failed"):
        print("fedbilevel resume: no uploads", file=sys.stderr)
        with open(directory + "/failure.json", "w") as file:
            json.dump({"rounds": 2, "reason": "no uploads"}, file)
        code = 2
    elif name.startswith("endless"):
        stopped = []
        signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
        print(json.dumps({**RECORD, "rounds": 1}), flush=True)
        while not stopped:
            time.sleep(0.01)
        code = 130
    else:
        print(json.dumps({"outcome": "good"}), flush=True)
        print("device 1 is excluded", file=sys.stderr)
        with open(directory + "/metrics.jsonl", "w") as file:
            file.write(json.dumps(RECORD) + "\n")
        print(json.dumps(RECORD), flush=True)
    sys.stderr.flush()
    print(json.dumps({"ended": code}), flush=True)
"""


@pytest.fixture(autouse=True)
def no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PROGRAM", PROGRAM)


def job(directory: Path, name: str, *, replaces: bool = False, file: str = "") -> Job:
    experiment = Experiment(FedBiO(0.1), rounds=4)
    return Job(Path(f"{file or name}.toml"), experiment, directory / name, replaces)


def process_of(one: Job) -> int:
    return int((one.directory / "process").read_text())


def test_an_error_of_one_run_is_not_that_of_the_others(tmp_path, capsys):
    names = "fine-1", "killed", "refused", "failed", "fine-2", "fine-3"
    jobs = [job(tmp_path, name) for name in names]
    code, errors = run_batch(jobs, 2, quiet=True)
    assert code == 0
    assert {directory.name: reason for directory, reason in errors.items()} == {
        "killed": "Its worker process ended with SIGKILL. If memory ran out, reduce "
        "--jobs; else resume the run alone to see its output: fedbilevel resume "
        f"{tmp_path / 'killed'}",
        "refused": "no data\nput them there",
    }
    assert [one.directory.name for one in jobs if one.has_result] == [
        "fine-1",
        "failed",
        "fine-2",
        "fine-3",
    ]
    output = capsys.readouterr().err
    assert "Running fine-2.toml with seed 0" in output
    # Warnings of a run are prefixed by its name.
    assert f"{tmp_path}/fine-1: device 1 is excluded" in output
    assert "outcome" not in output
    assert read_run_experiment(tmp_path / "fine-1") == jobs[0].experiment


def test_a_run_that_ended_without_a_message_names_a_command_that_shows_more(tmp_path):
    jobs = [job(tmp_path, name) for name in ("ended", "silent")]
    ended, silent = (item.directory for item in jobs)
    code, errors = run_batch(jobs, 2, quiet=True)
    assert code == 0
    assert errors == {
        ended: "Its worker process ended with exit code 7. Resume the run alone to see "
        f"its output: fedbilevel resume {ended}",
        silent: f"{silent} has neither a result nor an error message. Resume the run "
        f"alone to see its output: fedbilevel resume {silent}",
    }


def test_workers_begin_with_different_files(tmp_path):
    names = ["endless-a0", "endless-a1", "endless-b0", "endless-b1"]
    jobs = [job(tmp_path, name, file=name[:-1]) for name in names]
    with closing(WorkerPool(jobs, 2, BatchProgress(4))) as pool:
        pool.start_jobs()
        started = [one.directory.name for one in jobs if one.directory.exists()]
        assert started == ["endless-a0", "endless-b0"]  # two programs to compile


def test_the_first_interruption_ends_all_rounds_and_begins_no_run(tmp_path, capsys):
    jobs = [job(tmp_path, f"endless-{n}") for n in range(3)]
    interrupt_when(
        lambda: all((one.directory / "process").exists() for one in jobs[:2])
    )
    code, errors = run_batch(jobs, 2, quiet=True)
    assert code == 130
    assert errors == {}
    assert not jobs[2].directory.exists()
    output = capsys.readouterr().err
    assert "Stopping after this round" in output
    assert "Stopped with 0 of 3 runs finished. The same command resumes" in output
    assert not any(alive(process_of(one)) for one in jobs[:2])


def test_whatever_ends_the_command_ends_its_workers(tmp_path, monkeypatch):
    jobs = [job(tmp_path, "endless-1"), job(tmp_path, "endless-2")]

    def interrupt(pool) -> None:
        if all((one.directory / "process").exists() for one in jobs):
            raise KeyboardInterrupt

    monkeypatch.setattr(WorkerPool, "read_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_batch(jobs, 2, quiet=True)
    assert not any(alive(process_of(one)) for one in jobs)


def test_a_run_that_another_process_has_is_an_error_of_that_run(tmp_path):
    jobs = [job(tmp_path, "fine-1"), job(tmp_path, "fine-2")]
    with run_lock(jobs[0].directory):
        code, errors = run_batch(jobs, 2, quiet=True)
    assert code == 0
    assert "is locked: another process is running" in errors[jobs[0].directory]
    assert jobs[1].has_result


def test_a_replaced_run_is_announced_and_repeated(tmp_path, capsys):
    old = job(tmp_path, "fine", replaces=True)
    keep(Experiment(FedBiO(0.7)), old.directory)
    write_failure(old.directory, Failure(2, "no uploads"))
    run_batch([old, job(tmp_path, "fine-2")], 2, quiet=True)
    assert f"Replacing the run in {old.directory}" in capsys.readouterr().err
    assert read_failure(old.directory) is None
    assert read_run_experiment(old.directory) == old.experiment


def test_one_process_a_core_at_most_one_a_run_and_one_a_gigabyte(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(batch, "memory_limit", lambda: 16 * 10**9)
    jobs = [job(tmp_path, f"fine-{n}") for n in range(20)]
    assert processes_for(jobs) == 8
    assert processes_for(jobs[:3]) == 3

    def on_cores(cores: int | None) -> list[Job]:
        engine = Sharded(cores=cores)
        return [
            one._replace(experiment=Experiment(FedBiO(0.1), engine=engine))
            for one in jobs
        ]

    assert processes_for(on_cores(4)) == 2
    assert processes_for(on_cores(None)) == 1
    monkeypatch.setattr(batch, "memory_limit", lambda: 4 * 10**9)
    assert processes_for(jobs) == 4


def test_a_process_sets_its_number_of_cores_only_once(tmp_path):
    jobs = [job(tmp_path, f"fine-{n}") for n in range(4)]
    jobs[1:3] = [
        one._replace(experiment=replace(one.experiment, engine=Sharded(cores=2)))
        for one in jobs[1:3]
    ]
    code, errors = run_batch(jobs, 1, quiet=True)
    assert (code, errors) == (0, {})
    first, second, third, fourth = map(process_of, jobs)
    assert second == third
    assert second not in (first, fourth)


def interrupt_when(ready) -> None:
    def wait() -> None:
        while not ready():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
