"""Comparison of methods that find sites with wrong labels, and of their models.

    python -m benchmarks.sites              # at most 3 hours, in two processes
    python -m benchmarks.sites --only fashion-skewed-14-next-100-server
    python -m benchmarks.sites --seeds 3    # a first look; nothing is published
    python -m benchmarks.sites --fast       # a small version, as in the checks

Every contender of `benchmarks.sites.contenders` trains on the same sites. Settings are
chosen by the trusted examples only, and exchanges for rejected settings count. A cell
is one task and seed with all contenders; finished cells are stored, and several
processes share the work. It needs the data of `python -m benchmarks.fetch_data`.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import experiment
from benchmarks.sites.contenders import CONTENDERS, ORACLE, QUICK
from benchmarks.sites.results import Contender
from benchmarks.sites.tasks import FAST_CASE, Case, full_cases, make_task

PUBLISHED = experiment.RESULTS / "sites.json"
FLAGS = "--xla_llvm_disable_expensive_passes=true --xla_cpu_multi_thread_eigen=false"
"""Flags of XLA: half the time of compilation, and one thread a process."""


class Setting(NamedTuple):
    """The size of the benchmark."""

    fast: bool
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    contenders: Mapping[str, Contender]


FULL = Setting(False, tuple(full_cases()), tuple(range(100, 110)), CONTENDERS)
"""Settings of contenders were chosen with the seeds 0 to 4."""
FAST = Setting(
    True,
    (FAST_CASE,),
    (0,),
    {name: CONTENDERS[name] for name in QUICK},
)


def compete(case: Case, seed: int, contenders: Mapping[str, Contender]) -> Any:
    """Return the results of all contenders on a task; None where one does not apply."""
    task = make_task(case, seed)
    results: dict[str, Any] = {}
    for name, contender in contenders.items():
        start = time.perf_counter()
        result = contender(task, seed)
        seconds = time.perf_counter() - start
        results[name] = result and {**result._asdict(), "seconds": seconds}
    return {"bad": task.bad.tolist(), "results": results}


def cells_of(setting: Setting) -> dict[str, Callable[[], Any]]:
    """Return the cells: the first seed of every case first."""
    return {
        f"{case.name}.{seed}": partial(compete, case, seed, setting.contenders)
        for seed in setting.seeds
        for case in setting.cases
    }


def report(results: Mapping[str, Any], setting: Setting, directory: Path) -> None:
    """Write a table of every case and an overview."""
    # Imported here, so that it is not part of the fingerprint of the cells.
    from benchmarks.sites.measure import write_case, write_overview

    cases = {
        case.name: [results[f"{case.name}.{seed}"] for seed in setting.seeds]
        for case in setting.cases
    }
    for name, cells in cases.items():
        write_case(directory / f"sites-{name}.md", cells, ORACLE)
    write_overview(directory / "sites-accuracy.md", cases)
    write_overview(directory / "sites-log-loss.md", cases, "log_loss")


def run(setting: Setting, published: Path | None, directory: Path) -> None:
    # Names of cells and the code say the rest: runs with fewer seeds share the cells.
    parameters = setting.fast, list(setting.contenders), FLAGS, jax.__version__
    cells = cells_of(setting)
    results = experiment.run_cells("sites", parameters, cells, published)
    report(results, setting, directory)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="small, as in the checks")
    names = [case.name for case in FULL.cases]
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=names, help="some cases"
    )
    parser.add_argument("--seeds", type=int, help="fewer seeds; nothing is published")
    options = parser.parse_args(arguments)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    jax.devices()  # reads the flags
    setting = FAST if options.fast else FULL
    partial_run = options.fast or options.seeds is not None
    if options.seeds is not None:
        setting = setting._replace(seeds=setting.seeds[: options.seeds])
    if options.only:
        setting = setting._replace(
            cases=tuple(case for case in FULL.cases if case.name in options.only)
        )
    directory = experiment.results_directory(setting.fast)
    if partial_run and not options.fast:
        directory = experiment.cells_directory() / f"sites-{len(setting.seeds)}-seeds"
    run(setting, None if partial_run else PUBLISHED, directory)


if __name__ == "__main__":
    main()
