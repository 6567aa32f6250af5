"""Weak scaling: one process against two with twice the devices, one core each.

Workers stay alive and alternate: the parent starts some rounds on one side while the
other waits. As a program, this module is a worker.
"""

import os
import socket
import subprocess
import sys
from statistics import median

from benchmarks.timing import REPEATS, interleave, print_table, ratio

DEVICES, BATCH = 8, 32
"""Devices of each process, and batch size."""


def main(port: int, processes: int, process: int, devices: int, batch: int) -> None:
    """Run some rounds for each line of standard input, and answer with a line."""
    if sys.platform != "linux":
        raise SystemExit(
            "benchmarks.weak_scaling binds workers to cores: run on Linux."
        )
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[process]})
    # The same as `chrt --batch 0`. Otherwise Gloo's thread, woken while the waiting
    # thread holds their lock, occupies their only core until the next tick.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    import jax

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)

    from benchmarks import bare, softmax
    from benchmarks.overhead import package_rounds
    from fedbilevel import Sharded

    settings = bare.Settings(devices, batch, devices)
    call = package_rounds(2, settings, softmax.devices(devices), Sharded())
    print("ready", flush=True)
    for _ in sys.stdin:
        call()
        print("done", flush=True)


class Side:
    """Workers of one computation."""

    def __init__(self, processes: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        count = processes * DEVICES
        self.workers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.weak_scaling"),
                    *map(str, (port, processes, process, count, BATCH)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for process in range(processes)
        ]
        self._wait_for("ready")

    def call(self) -> None:
        """Run some rounds."""
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        self._wait_for("done")

    def close(self) -> None:
        # Close all before waiting: workers wait for each other before they end.
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()

    def _wait_for(self, message: str) -> None:
        for worker in self.workers:
            assert worker.stdout is not None
            for line in worker.stdout:
                if line.strip() == message:
                    break
            else:
                raise RuntimeError("A worker process ended before its answer.")


def efficiency(fast: bool) -> float:
    """Print and return the time of one process over that of two with twice the work."""
    sides = {"1 process": Side(1), "2 processes": Side(2)}
    seconds = interleave(
        {name: side.call for name, side in sides.items()}, 3 if fast else REPEATS
    )
    for side in sides.values():
        side.close()
    efficiency_ratio = ratio(seconds["1 process"], seconds["2 processes"])
    times = [f"{1e3 * median(calls):.1f}" for calls in seconds.values()]
    header = (
        "devices per process",
        "batch",
        "1 process ms",
        "2 processes ms",
        "efficiency",
    )
    print_table(header, [(DEVICES, BATCH, *times, f"{efficiency_ratio:.3f}")])
    return efficiency_ratio


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
