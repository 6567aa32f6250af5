"""Checkpoints are written even if the wall clock jumps."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbilevel import Checkpoints, run
from tests.engines.test_checkpoints import arguments
from tests.false_clock import false_clock
from tests.platforms import require_linux
from tests.waiting import HANG

pytestmark = pytest.mark.process

JUMPS = 86_400, -10_800, 0
ROUNDS_BETWEEN = 5


def main(offset: Path, directory: Path) -> None:
    """Run, with a checkpoint of every round, while the clock jumps."""
    rounds = run(
        **arguments(rounds=len(JUMPS) * ROUNDS_BETWEEN),
        checkpoints=Checkpoints(directory, every=1),
    )
    for seconds in JUMPS:
        offset.write_text(str(seconds))
        for _ in range(ROUNDS_BETWEEN):
            next(rounds)
        print(time.time(), flush=True)
    assert not list(rounds)
    # Threads of tensorstore wait by that clock, though most jumps do no harm.
    assert not [name for name in thread_names() if name.startswith("ts_")]


def thread_names() -> Iterator[str]:
    for file in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # The process has already ended.
            yield file.read_text()


def test_a_clock_that_jumps_holds_no_checkpoint_up(tmp_path):
    require_linux()
    offset, environment = false_clock(tmp_path)
    directory = tmp_path / "checkpoints"
    began = time.time()
    result = subprocess.run(
        [sys.executable, "-m", __name__, offset, directory],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=Path(__file__).parents[2],
    )
    assert result.returncode == 0, result.stderr[-3000:]
    took = time.time() - began
    for seen, jump in zip(map(float, result.stdout.split()), JUMPS, strict=True):
        assert 0 < seen - began - jump < took  # The clock was wrong.
    newest = directory / f"round_{len(JUMPS) * ROUNDS_BETWEEN}"
    assert (newest / "commit_success.txt").exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
