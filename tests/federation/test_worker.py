"""A worker: failures and deaths of its child raise errors, and no process is left."""

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedbilevel.federation.worker.worker import Worker, WorkerError
from tests.federation import computations
from tests.federation.processes import descendants, gone, until_gone
from tests.platforms import require_linux
from tests.waiting import HANG, until

pytestmark = pytest.mark.process

PARENT = """
import os, resource, sys
from pathlib import Path
from fedbilevel.federation.worker.worker import Worker, WorkerError
from tests.federation import computations
worker = Worker(computations.orders, Path(sys.argv[1]))
print(worker.ask(b"pid").decode(), flush=True)
"""

WHERE = "in obey of computations.py, line N"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def worker(notes: Path) -> Iterator[Worker]:
    with Worker(computations.orders, notes) as worker:
        yield worker
    assert not descendants(os.getpid())


def known(pid: int) -> bool:
    """Return whether a process exists, possibly as a zombie."""
    return bool(psutil.pid_exists(pid))


def under_way(notes: Path, order: str) -> bool:
    return notes.exists() and order in notes.read_text().splitlines()


class Asking:
    """A request from another thread: its answer or its error."""

    def __init__(self, worker: Worker, message: bytes, timeout: float | None = None):
        self.outcome: str | None = None
        self._thread = threading.Thread(
            target=self._ask, args=(worker, message, timeout)
        )
        self._thread.start()

    def _ask(self, *arguments) -> None:
        worker, *rest = arguments
        try:
            self.outcome = worker.ask(*rest).decode()
        except WorkerError as error:
            self.outcome = str(error)

    def get(self) -> str | None:
        self._thread.join(HANG)
        return self.outcome


def test_one_child_answers_all_and_makes_once(notes):
    with Worker(computations.pid_and_calls, notes) as worker:
        assert not descendants(os.getpid())
        first = worker.ask(b"")
        assert {worker.ask(b"") for _ in range(20)} == {first}
        pid, calls = map(int, first.split())
        assert (descendants(os.getpid()), calls) == ({pid}, 1)
    assert not known(pid)


def test_a_child_killed_while_computing_is_an_error_and_the_next_works(worker, notes):
    pid = int(worker.ask(b"pid"))
    asking = Asking(worker, b"sleep 3600")
    until(lambda: under_way(notes, "sleep 3600"), pause=0.01)
    os.kill(pid, signal.SIGKILL)
    killed = "the computation was killed (signal 9, perhaps out of memory)"
    assert asking.get() == killed
    assert not known(pid)
    assert int(worker.ask(b"pid")) != pid


def test_a_child_killed_while_idle_is_replaced_and_no_message_lost(worker):
    pid = int(worker.ask(b"pid"))
    os.kill(pid, signal.SIGKILL)
    # Wait for its end, but let the worker reap it.
    until(lambda: gone(pid), pause=0.01)
    assert int(worker.ask(b"pid")) != pid
    assert not known(pid)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (b"signal 11", "was killed (signal 11, Segmentation fault)"),
        (b"end 3", "computation's process ended by itself (exit code 3)"),
        (b"exit 3", f"raised SystemExit {WHERE}: 3"),
        (b"raise no such row", f"raised ValueError {WHERE}: no such row"),
        (b"raise ", f"raised ValueError {WHERE}"),
        (b"raise one\ntwo", f"raised ValueError {WHERE}: one"),
        ("raise λ≥0".encode(), f"raised ValueError {WHERE}: λ≥0"),
        (b"number 3", "raised TypeError: the answer must be bytes or str, not int"),
    ],
)
def test_a_failure_raises_an_error_and_the_next_message_works(worker, order, reason):
    with pytest.raises(WorkerError) as failure:
        worker.ask(order)
    reply = str(failure.value)
    assert re.sub(r"line \d+", "line N", reply).endswith(reason)
    # The server gets the type and the location of the error, not its message.
    assert failure.value.summary == reply.partition(": ")[0]
    assert int(worker.ask(b"pid")) in descendants(os.getpid())


def test_an_answer_may_be_text(worker):
    assert worker.ask("say λ≥0".encode()) == "λ≥0"
    assert worker.ask(b"answer 3") == bytes(3)
    assert worker.ask(b"say ") == ""


def test_a_long_message_of_an_exception_is_cut(worker):
    with pytest.raises(WorkerError) as failure:
        worker.ask(b"raise " + b"x" * 1_000_000)
    assert len(str(failure.value)) < 600


def test_a_child_out_of_memory_fails_and_goes_on():
    require_linux()
    room = 200_000_000
    with Worker(computations.starved, room) as worker:
        with pytest.raises(WorkerError, match="raised MemoryError"):
            worker.ask(b"%d" % (2 * room))
        assert int(worker.ask(b"%d" % (1 << 24))) == 1 << 24
        # A message that does not fit in memory has been read in part.
        with pytest.raises(WorkerError, match=r"ended by itself \(exit code 1\)"):
            worker.ask(bytes(2 * room))
        assert int(worker.ask(b"%d" % (1 << 24))) == 1 << 24


def test_a_make_that_fails_raises_an_error_and_is_retried(tmp_path):
    path = tmp_path / "data"
    with Worker(computations.unable, str(path)) as worker:
        with pytest.raises(
            WorkerError, match=r"could not begin: FileNotFoundError in .*: "
        ):
            worker.ask(b"hello")
        assert not descendants(os.getpid())
        path.write_bytes(b"here now")
        assert worker.ask(b"hello") == b"hello"


def test_a_child_killed_in_make_is_an_error():
    with Worker(computations.killed_at_start) as worker:
        for _ in range(2):
            with pytest.raises(WorkerError, match="killed"):
                worker.ask(b"hello")


def test_a_make_that_the_child_cannot_import_raises_an_error(monkeypatch):
    module = types.ModuleType("only_here")
    exec("def make(): return bytes", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with (
        Worker(module.make) as worker,
        pytest.raises(WorkerError, match=r"begin: ModuleNotFoundError: .*'only_here'"),
    ):
        worker.ask(b"hello")


def test_a_make_that_no_module_has_is_refused():
    with pytest.raises(ValueError, match="must be picklable"):
        Worker(lambda: bytes)


def test_a_child_imports_neither_the_main_module_nor_unused_modules():
    with Worker(computations.modules) as worker:
        result = set(str(worker.ask(b"")).split())
    assert not {"pytest", "jax", "numpy", "nvflare"} & result


def test_a_computation_that_hangs_is_ended_and_another_begins(worker):
    pid = int(worker.ask(b"pid"))
    # Long enough for a thread of this process to start, even at a load of 10.
    with pytest.raises(WorkerError, match=r"longer than 2 seconds and was ended"):
        worker.ask(b"sleep 3600", 2.0)
    assert worker.ask(b"answer 5") == bytes(5)
    assert int(worker.ask(b"pid")) != pid
    until_gone([pid])


def test_a_call_that_gave_up_before_its_turn_is_never_computed(worker, notes, tmp_path):
    free = tmp_path / "free"
    asking = Asking(worker, f"wait {free}".encode())
    until(lambda: under_way(notes, f"wait {free}"), pause=0.01)
    with pytest.raises(WorkerError, match=r"took longer than 0\.1 seconds"):
        worker.ask(b"answer 7", 0.1)
    free.touch()
    asking.get()
    # Without the cancellation it would be answered before this one.
    worker.ask(b"pid")
    assert not under_way(notes, "answer 7")


def test_a_newer_task_takes_the_place_of_one_that_waits(worker, notes, tmp_path):
    free = tmp_path / "free"
    computing = Asking(worker, f"wait {free}".encode())
    until(lambda: under_way(notes, f"wait {free}"), pause=0.01)
    older = Asking(worker, b"answer 1")
    until(lambda: worker._next is not None, pause=0.01)
    newer = Asking(worker, b"pid")
    assert older.get() == "a newer task has replaced this one"
    # The error came at once, without waiting for its turn.
    assert computing.outcome is None
    free.touch()
    assert computing.get() == newer.get()
    assert not under_way(notes, "answer 1")


def test_many_threads_get_their_own_answers_or_a_reason():
    answers: list[tuple[bytes, str | None]] = []
    with Worker(computations.echo) as worker:

        def ask(thread: int) -> None:
            for number in range(50):
                message = f"{thread} {number}".encode()
                answers.append((message, Asking(worker, message).get()))

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = [f"alone {number}" for number in range(50)]
        afterwards = [Asking(worker, item.encode()).get() for item in alone]
    right = [value.decode() == answer for value, answer in answers]
    newer = [answer == "a newer task has replaced this one" for _, answer in answers]
    assert len(answers) == 200
    assert all(a != b for a, b in zip(right, newer, strict=True))
    # The last message is never replaced. The number of others that are answered depends
    # on the machine.
    assert any(right)
    assert afterwards == alone


def test_fifty_megabytes_go_and_come_back():
    message = os.urandom(50_000_000)
    with Worker(computations.echo) as worker:
        assert worker.ask(b"") == b""
        assert worker.ask(message) == message


def test_closing_ends_a_computation_at_once(notes):
    worker = Worker(computations.orders, notes)
    computing = Asking(worker, b"sleep 3600")
    until(lambda: under_way(notes, "sleep 3600"), pause=0.01)
    waiting = Asking(worker, b"pid")
    until(lambda: worker._next is not None, pause=0.01)
    (pid,) = descendants(os.getpid())
    worker.close()
    worker.close()
    assert not known(pid)
    assert computing.get() == waiting.get() == "the worker is closed"
    with pytest.raises(WorkerError, match="the worker is closed"):
        worker.ask(b"pid")


def test_a_forked_process_of_the_child_does_not_hide_its_death(worker, notes):
    with pytest.raises(WorkerError, match="killed"):
        worker.ask(b"fork 3600", HANG)
    os.kill(int(notes.read_text()), signal.SIGKILL)
    assert int(worker.ask(b"pid")) in descendants(os.getpid())


def test_ctrl_c_is_not_for_the_child(worker):
    pid = int(worker.ask(b"pid"))
    os.kill(pid, signal.SIGINT)
    assert int(worker.ask(b"pid")) == pid


def parent(notes: Path, script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + script, str(notes)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("busy", [False, True])
def test_a_child_goes_when_its_parent_is_killed(notes, busy):
    script = "worker.ask(b'sleep 3600') if {} else input()"
    with parent(notes, script.format(busy)) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if busy:
            until(lambda: under_way(notes, "sleep 3600"), pause=0.01)
        process.kill()
        process.wait()
        until_gone([pid])


def test_a_parent_that_ends_waits_for_no_computation_and_leaves_nothing(notes):
    script = """
try:
    worker.ask(b"sleep 3600", 0.2)
except WorkerError as error:
    print(error)
"""
    with parent(notes, script) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.wait(HANG) == 0
        until_gone([pid])
        # The child inherits the parent's output, which ends with the last process.
        assert "took longer than 0.2 seconds" in process.stdout.read()


def test_an_answer_too_large_for_the_parent_is_an_error_and_the_next_works(notes):
    require_linux()
    script = """
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 50_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    worker.ask(b"answer 200000000")
except WorkerError as error:
    print(error)
print(worker.ask(b"answer 3"))
worker.close()
"""
    with parent(notes, script) as process:
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 0
    assert output.splitlines()[1:] == [
        "the request to the worker failed: MemoryError()",
        r"b'\x00\x00\x00'",
    ]


def test_a_process_that_the_computation_starts_does_not_hold_the_connection(
    worker, notes
):
    require_linux()
    pid = int(worker.ask(b"start"))
    started = int(notes.read_text())
    sockets = {link for link in _descriptors(pid) if "socket" in link}
    assert sockets
    assert not sockets & _descriptors(started)
    os.kill(started, signal.SIGKILL)


def _descriptors(pid: int) -> set[str]:
    directory = Path(f"/proc/{pid}/fd")
    return {os.readlink(path) for path in directory.iterdir() if path.is_symlink()}


def test_arguments_and_partial_functions_reach_the_child(tmp_path):
    path = tmp_path / "data"
    path.touch()
    with Worker(functools.partial(computations.unable, str(path))) as worker:
        assert worker.ask(b"hello") == b"hello"
