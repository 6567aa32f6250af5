"""Print the time of a tier of the tests: `python -m tools.tiers`, or with `--ci`.

Without an option, `make quick` runs in this checkout with an empty cache of compiled
programs. With `--ci`, `.ci/run` runs in a new clone of the last commit: installation,
data, lint and `make test`. Run it on an otherwise idle machine.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
QUICK, CI = ("make", "quick"), (".ci/run",)
LIMITS = {QUICK: 120.0, CI: 1200.0}
"""Seconds that a command may take on two idle cores."""


class Times(NamedTuple):
    """Time of a command and of its processes that ended, in seconds."""

    elapsed: float
    processor: float
    status: int


def measure(command: Sequence[str], directory: Path, cache: Path) -> Times:
    """Return the time of a command that starts from a directory of compiled programs.

    Args:
        command: the program and its arguments.
        directory: directory where the command runs.
        cache: directory of compiled programs, empty for a cold start.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    status = subprocess.run(command, cwd=directory, env=environment).returncode
    elapsed = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Times(elapsed, processor, status)


def report(name: str, times: Times, limit: float) -> str:
    """Return a line with the time of a command and its limit."""
    return (
        f"{name}: {times.elapsed:.0f} s of at most {limit:.0f} s, "
        f"{times.processor:.0f} s of processor time, exit status {times.status}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tier, print its time, and return 1 if it failed or exceeded its limit."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiers", description=__doc__)
    parser.add_argument("--ci", action="store_true", help="run .ci/run in a new clone")
    command = CI if parser.parse_args(arguments).ci else QUICK
    with tempfile.TemporaryDirectory() as temporary:
        directory = ROOT
        if command is CI:
            directory = Path(temporary) / "clone"
            clone = ["git", "clone", "--quiet", str(ROOT), str(directory)]
            subprocess.run(clone, check=True)
        times = measure(command, directory, Path(temporary) / "compiled")
    print(report(" ".join(command), times, LIMITS[command]))
    return int(times.status != 0 or times.elapsed > LIMITS[command])


if __name__ == "__main__":
    sys.exit(main())
