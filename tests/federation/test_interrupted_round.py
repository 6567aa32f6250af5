"""Ctrl-C in the middle of a round that would take minutes, with real processes."""

import signal
import time

import pytest

from fedbilevel.flare.provisioning import provision_kits
from fedbilevel.flare.rehearsals import pids
from tests.federation.experiments import SITES, federating, written
from tests.federation.processes import command_lines, until_gone
from tests.waiting import HANG, until

LONG = "--algorithm.local_steps", "1000000000"
"""Hours of work at each site."""
TIMEOUT = "rounds = 3\nfederation.timeout = 1e9"


@pytest.mark.nightly
def test_one_interrupt_ends_the_command_the_job_and_the_computations(tmp_path):
    file = written(tmp_path, "LocalBSGM", TIMEOUT)
    kits = provision_kits(tmp_path / "runs" / "LocalBSGM-federated" / "kits", SITES)

    def computations():
        every = [pid for kit in kits.sites.values() for pid in pids(kit)]
        lines = command_lines(every).items()
        return [pid for pid, line in lines if "worker.child" in line]

    def all_compute():
        # A site notes a task before it computes.
        files = [list(kit.rglob("answered.txt")) for kit in kits.sites.values()]
        return all(files)

    with federating(file, *LONG) as command:
        command.until(all_compute)
        working = computations()
        assert len(working) == len(SITES)
        began = time.monotonic()
        command.process.send_signal(signal.SIGINT)
        until_gone(working)
        print(f"the computations ended after {time.monotonic() - began:.1f} s")
        until(lambda: command.process.poll() is not None, lambda: command.output)
        print(f"the command ended after {time.monotonic() - began:.1f} s")
        assert command.process.wait(HANG) == 128 + signal.SIGINT, command.output
    assert "The same command resumes the run" in command.output
