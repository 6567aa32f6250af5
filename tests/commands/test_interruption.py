"""A second Ctrl-C ends a process whose main thread is in one long operation."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from fedbilevel.commands import interruption as module
from tests.commands.typing_in import ENVIRONMENT
from tests.waiting import HANG, until

STUCK = """
import hashlib
from fedbilevel.commands.interruption import interruption
with interruption():
    print("begun", flush=True)
    # One operation for Python, as a compiled program of JAX is: it takes hours.
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)
"""
FORKS = """
import os, signal
from fedbilevel.commands.interruption import interruption
with interruption():
    child = os.fork()
    if not child:
        signal.pause()
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.process
def test_a_process_forked_within_does_not_delay_the_end():
    command = [sys.executable, "-c", FORKS]
    assert subprocess.run(command, env=ENVIRONMENT, timeout=HANG).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_interruption_ends_a_program_in_mid_work(second):
    with subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    ) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == "begun\n"
        begun.send_signal(signal.SIGINT)

        def ended() -> bool:
            # Repeated, since two signals of one number may arrive as one.
            begun.send_signal(second)
            return begun.poll() is not None

        until(ended)
    # Two signals may arrive in either order. The process ends by the second one itself
    # if Python handled the first one before the operation.
    assert begun.returncode in (128 + signal.SIGINT, 128 + second, -second)


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_process_that_handles_the_second_interruption_is_not_ended(
    monkeypatch, capsys, is_ending
):
    codes: list[int] = []
    reader, writer = socket.socketpair()

    def end(code: int) -> None:
        writer.close()
        codes.append(code)

    monkeypatch.setattr(module, "END_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    interrupted = module.Interrupted()
    interrupted.is_ending = is_ending
    writer.send(bytes([signal.SIGINT, signal.SIGTERM]))
    if is_ending:
        writer.close()
    module.watch(reader, interrupted)
    reader.close()
    assert codes == ([] if is_ending else [143])
    assert ("middle of this round" in capsys.readouterr().err) != is_ending


FORKING = """
import multiprocessing, signal, time
from fedbilevel.commands import interruption as module
module.END_SECONDS = 0.2
with module.interruption() as interrupted:
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=time.sleep, args=(60,)) for _ in range(2)]
    for child in children:
        child.start()
    time.sleep(0.2)
    for child in children:
        child.terminate()
        child.join()
    time.sleep(0.6)
    print(interrupted(), [child.exitcode for child in children])
"""


@pytest.mark.process
def test_signals_of_forked_processes_do_not_end_the_run():
    ended = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (ended.returncode, ended.stdout) == (0, "0 [-15, -15]\n"), ended.stderr
