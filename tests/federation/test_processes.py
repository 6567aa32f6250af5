"""Tests of the helpers that observe processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.federation.processes import descendants, gone, memory, until_gone

pytestmark = pytest.mark.process

HOLDS = "held = bytearray(b'1') * {size}; print('ready', flush=True); input()"
STARTS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"])
print("ready", flush=True)
child.wait()
"""


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_memory_is_summed_over_processes():
    size = 30_000_000
    with (
        running(HOLDS.format(size=1)) as small,
        running(HOLDS.format(size=size)) as big,
    ):
        item, other = memory([small.pid]), memory([big.pid])
        assert memory([small.pid, big.pid]) == item + other
    assert other - item == pytest.approx(size, rel=0.05)
    assert memory([small.pid, big.pid]) == 0


def test_descendants_are_children_and_theirs():
    with running(STARTS) as process:
        (child,) = descendants(process.pid)
        assert {process.pid, child} <= descendants(os.getpid())
        assert not gone(child)
        process.kill()
        # The other end of the child's input closes.
        assert process.stdin is not None
        process.stdin.close()
        until_gone([process.pid, child])
