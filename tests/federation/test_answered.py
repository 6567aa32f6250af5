"""The record of answered tasks, with several simultaneous jobs of a kit."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import RefusedError, SiteRules
from fedbilevel.federation.exchange_counter import COUNT, ExchangeCounter
from fedbilevel.federation.task_record import ANSWERED, TaskRecord

MOST = 40


def tasks_of(runs: Path, name: str, most_rollbacks: int = 20) -> TaskRecord:
    """Return the task record of a run, as in a separate job."""
    allowed = SiteRules(most_exchanges=MOST, most_rollbacks=most_rollbacks)
    return TaskRecord(allowed, runs / "owner" / name, ExchangeCounter(runs))


def answer_all(runs: Path, name: str) -> int:
    """Admit tasks until the site refuses; return the number of admitted tasks."""
    tasks = tasks_of(runs, name)
    for number in range(2 * MOST):
        try:
            tasks.admit(Moment(number, 0), "aa")
        except RefusedError:
            return number
    return 2 * MOST


def test_two_runs_in_turns_share_one_bound(tmp_path):
    first, second = tasks_of(tmp_path, "first"), tasks_of(tmp_path, "second")
    for number in range(MOST // 2):
        first.admit(Moment(number, 0), "aa")
        second.admit(Moment(number, 0), "aa")
    for tasks in (first, second):
        with pytest.raises(RefusedError, match="most_exchanges = 40 in its local"):
            tasks.admit(Moment(MOST, 0), "aa")
        tasks.admit(Moment(0, 0), "aa")  # Repeated tasks are admitted as before.


def test_threads_share_one_bound(tmp_path):
    result: list[int] = []
    threads = [
        threading.Thread(
            target=lambda n=n: result.append(answer_all(tmp_path, f"r{n}"))
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result) == MOST


@pytest.mark.nightly
@pytest.mark.process
def test_processes_share_one_bound(tmp_path):
    code = (
        "import sys; from pathlib import Path; "
        "from tests.federation.test_answered import answer_all; "
        "print('ready', flush=True); sys.stdin.readline(); "
        "print(answer_all(Path(sys.argv[1]), sys.argv[2]))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert sum(int(process.communicate()[0]) for process in processes) == MOST
    lines = [len(file.read_text().splitlines()) for file in tmp_path.rglob(ANSWERED)]
    assert sum(lines) == MOST


def test_two_jobs_of_one_run_do_not_answer_one_exchange_twice(tmp_path):
    first = tasks_of(tmp_path, "first", most_rollbacks=0)
    other = tasks_of(tmp_path, "first", most_rollbacks=0)
    first.admit(Moment(0, 0), "aa")
    other.admit(Moment(0, 0), "aa")
    other.admit(Moment(1, 0), "bb")
    for tasks in (first, other):
        with pytest.raises(RefusedError, match="has another downlink"):
            tasks.admit(Moment(1, 0), "cc")
    first.admit(Moment(1, 0), "bb")


def test_removing_a_run_gives_no_exchanges_back(tmp_path):
    assert answer_all(tmp_path, "first") == MOST
    shutil.rmtree(tmp_path / "owner")
    for name in ("first", "second"):
        with pytest.raises(
            RefusedError, match="Ask its operator to raise most_exchanges"
        ):
            tasks_of(tmp_path, name).admit(Moment(0, 0), "aa")


def test_an_operator_reads_what_was_answered(tmp_path):
    tasks_of(tmp_path, "first").admit(Moment(0, 0), "aa")
    tasks_of(tmp_path, "second").admit(Moment(3, 1), "aa")
    assert (tmp_path / COUNT).read_text() == "first 0 0 none\nsecond 3 1 none\n"


def test_an_exchange_is_counted_before_it_is_noted(tmp_path):
    tasks = tasks_of(tmp_path, "first")
    (tmp_path / "owner").write_text("no directory")
    with pytest.raises(RefusedError, match="cannot record the task"):
        tasks.admit(Moment(0, 0), "aa")
    assert (tmp_path / COUNT).read_text() == "first 0 0 none\n"
