"""Processes killed by signals end with the same bits as uninterrupted ones."""

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.engines import durable
from tests.engines.starting import start_processes
from tests.waiting import HANG

pytestmark = pytest.mark.process


def start(directory: Path, result: Path, count: int) -> list[subprocess.Popen[str]]:
    module = ["tests.engines.durable", str(directory), str(result)]
    return start_processes(count, module)


def finish(running: list[subprocess.Popen[str]]) -> None:
    for process in running:
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 0, output


def finish_elsewhere(directory: Path, count: int) -> np.ndarray:
    """Resume a copy with another number of processes; return the final state."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    result = directory.with_name("copy.npy")
    finish(start(copy, result, count))
    return np.asarray(np.load(result))


def rounds_seen(process: subprocess.Popen[str], enough: int) -> int:
    """Wait until the process has printed a number of rounds; return the first."""
    assert process.stdout is not None
    seen: list[int] = []
    for line in process.stdout:
        assert "Skipped" not in line, line
        # Other processes write to the same pipe, in parts.
        seen += [int(number) for number in re.findall(r"round (\d+)\n", line)]
        if len(seen) >= enough:
            break
    return seen[0]


def newest(directory: Path) -> int:
    """Return the number of rounds of the newest checkpoint."""
    actual = [path.name.split("_")[1] for path in directory.glob("round_*")]
    return max([0, *(int(number) for number in actual if number.isdigit())])


def wait_for_a_write(directory: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if any(directory.glob("*.orbax-checkpoint-tmp")):
            return
        time.sleep(0.0002)


# By day there is one kill, during a write. By day, resumption with another number of
# processes is tested by the engines of one process: tests/engines/test_checkpoints.py.
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.nightly)])
def test_a_run_killed_several_times_ends_with_the_same_bits(kills, tmp_path):
    directory, result = tmp_path / "killed", tmp_path / "killed.npy"
    generator = np.random.default_rng(3)
    killed = 0
    while killed < kills:
        (process,) = start(directory, result, 1)
        before = newest(directory)
        # At least one checkpoint, so that the run advances between two kills.
        first = rounds_seen(process, int(generator.integers(3, 6)))
        assert first == before
        if killed % 2:
            time.sleep(float(generator.uniform(0, 0.02)))
        else:
            wait_for_a_write(directory, process)
        assert process.poll() is None, "the run was over before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
        assert newest(directory) >= before
    assert newest(directory) > 0
    in_two = finish_elsewhere(directory, 2) if kills > 1 else None
    finish(start(directory, result, 1))
    # The uninterrupted run is in this process: bits do not depend on the process.
    whole = tmp_path / "whole.npy"
    durable.main(tmp_path / "whole", whole)
    np.testing.assert_array_equal(np.load(result), np.load(whole))
    if in_two is not None:
        np.testing.assert_allclose(in_two, np.load(whole), rtol=0, atol=1e-10)


@pytest.mark.nightly
@pytest.mark.parametrize("victims", [(1,), (0, 1, 1)], ids=len)
def test_one_of_two_processes_killed_and_both_restarted(victims, tmp_path):
    directory, result = tmp_path / "killed", tmp_path / "killed.npy"
    generator = np.random.default_rng(4)
    for victim in victims:
        before = newest(directory)
        running = start(directory, result, 2)
        assert rounds_seen(running[victim], int(generator.integers(4, 9))) == before
        running[victim].send_signal(signal.SIGKILL)
        # The other process waits for ever: its supervisor ends it too, a moment later.
        # The length of the pause does not matter.
        time.sleep(0.5)
        for process in running:
            process.kill()
            process.communicate()
        assert newest(directory) >= before
    assert newest(directory) > 0
    in_one = finish_elsewhere(directory, 1)
    finish(start(directory, result, 2))
    whole = tmp_path / "whole.npy"
    finish(start(tmp_path / "whole", whole, 2))
    np.testing.assert_array_equal(np.load(result), np.load(whole))
    np.testing.assert_allclose(in_one, np.load(whole), rtol=0, atol=1e-10)
