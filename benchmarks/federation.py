"""Overhead of an exchange of a real federation over a bare Collab program.

Four sites run on this machine, with real processes and mutual TLS. Both programs
alternate in one job. Memory is the peak of the server's process, and of a site's worker
and its computation together, in a separate job for each program and size.
"""

import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.collab import CollabRecipe

from benchmarks.federation_job import RESULT, TimedServer, TimedSite
from benchmarks.timing import Bound, conclude, print_table, ratio, wants_fast
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.rehearsals import rehearsal

SITES = [f"site-{number}" for number in range(1, 5)]
SIZES = {"1 KB": 256, "1 MB": 2**18, "50 MB": 50 * 2**18}
REPEATS = 15
LIMIT, MEMORY_LIMIT = 1.15, 1.2


def main() -> None:
    fast = wants_fast(__doc__, "small arrays only, few repeats")
    sizes = {"1 KB": SIZES["1 KB"]} if fast else SIZES
    bounds = []
    with (
        TemporaryDirectory() as directory,
        rehearsal(Path(directory), SITES) as kits,
        Administrator(kits.lead) as administrator,
    ):
        timed = _job(
            administrator,
            TimedServer(list(sizes.values()), 3 if fast else REPEATS, ["ours", "bare"]),
        )
        rows = []
        for name, size in sizes.items():
            seconds = timed["seconds"][str(size)]
            overhead = ratio(seconds["ours"], seconds["bare"])
            milliseconds = [1000 * median(seconds[key]) for key in ("ours", "bare")]
            rows.append(
                [name, *(f"{ms:.1f}" for ms in milliseconds), f"{overhead:.3f}"]
            )
            bounds.append(Bound(f"time at {name}", overhead, LIMIT))
        print_table(["each way", "ours, ms", "bare, ms", "ratio"], rows)
        if not fast:
            peaks = {
                (name, program): _job(administrator, TimedServer([size], 5, [program]))
                for name, size in SIZES.items()
                for program in ("ours", "bare")
            }
            rows = [
                [
                    *job,
                    *(f"{peak[process] / 1e6:.0f}" for process in ("server", "site")),
                ]
                for job, peak in peaks.items()
            ]
            print_table(["each way", "program", "server, MB", "site, MB"], rows)
            ours, bare = (
                peaks["50 MB", program]["server"] for program in ("ours", "bare")
            )
            bounds.append(Bound("memory at 50 MB", ours / bare, MEMORY_LIMIT))
    # A few repeats show that the benchmark runs, but not how fast.
    if not fast:
        conclude(bounds)


def _job(administrator: Administrator, server: TimedServer) -> dict[str, Any]:
    recipe = CollabRecipe(
        "timed", server=server, client=TimedSite(), min_clients=len(SITES)
    )
    with TemporaryDirectory() as directory:
        recipe.export(directory)
        job = administrator.submit(Path(directory) / "timed")
        while not (status := administrator.state(job).status).startswith("FINISHED"):
            time.sleep(1)
        results = administrator.results(job, Path(directory) / "results")
        for file in results.rglob(RESULT):
            result: dict[str, Any] = json.loads(file.read_text())
            return result
    raise RuntimeError(
        f"Job {job} ended with status {status} and without a result. See its log."
    )


if __name__ == "__main__":
    main()
