"""Traffic on real tasks: bytes and test metric with codes of uploads and downloads.

    python -m benchmarks.traffic            # about an hour on 1 core
    python -m benchmarks.traffic --only regularisation-adult
    python -m benchmarks.traffic --fast     # small versions, as in CI
    python -m benchmarks.traffic --published    # only tables of traffic.json

The settings are those of `benchmarks.tasks`, found without codes; runs draw a quarter
of its samples. All runs of an algorithm on a task have the same number of rounds.
Devices are heterogeneous. Bytes are those of `predict_costs`: of the arrays that are
sent. The test metric is that of the last x and y; its band is the 95 % confidence
interval of the mean over the seeds of the runs without codes. Finished cells are
stored; several processes share the work. It needs the data of `python -m
benchmarks.fetch_data`.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import experiment, tasks
from benchmarks.contenders import AUTO, SEARCHED, Scale
from benchmarks.experiment import half_width, short, write_markdown, write_table
from benchmarks.task_list import METRICS, Partition
from benchmarks.timing import print_table
from fedbilevel import (
    AutoFedBiO,
    Chain,
    Download,
    FederatedAlgorithm,
    Feedback,
    Quantise,
    RandomK,
    Run,
    TopK,
    predict_costs,
    with_transforms,
)
from fedbilevel.engines.final_points import final_points

PUBLISHED = experiment.RESULTS / "traffic.json"
PARTITION = Partition.HETEROGENEOUS
ALGORITHMS = AUTO, "FedBiO", "LocalBSGM"
LARGEST = Feedback(Chain(TopK(0.1), Quantise(8)))
FEWEST = Feedback(Chain(TopK(0.05), Quantise(4)))
NONE = "none"
CODES: dict[str, tuple[Any, ...]] = {
    NONE: (),
    "10 % in 8 bits, feedback": (LARGEST,),
    "5 % in 4 bits, feedback": (FEWEST,),
    "10 % in 8 bits, feedback; 8 bits down": (Download(Quantise(8)), LARGEST),
    "8 bits": (Quantise(8),),
    "8 bits down": (Download(Quantise(8)),),
    "4 bits": (Quantise(4),),
    "2 bits, feedback": (Feedback(Quantise(2)),),
    "random 10 %": (RandomK(0.1),),
    "16 bits down": (Download(Quantise(16)),),
}
"""Transforms by name; of uploads unless the name says down."""
HEADER = [
    "task",
    "algorithm",
    "code",
    "metric",
    "mean",
    "half_width",
    "difference",
    "difference_half_width",
    "band",
    "seeds",
    "failed",
    "rounds",
    "megabytes_up",
    "megabytes_down",
    "megabytes",
    "fewer_up",
    "fewer_down",
    "fewer",
]


class Setting(NamedTuple):
    """The size of the benchmark."""

    fast: bool
    race: tasks.Setting
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    codes: tuple[str, ...]


FULL = Setting(
    False,
    tasks.FULL._replace(samples=250_000),
    tuple(range(200, 210)),
    ("regularisation-adult", "cleaning-mnist", "imbalance-mnist"),
    tuple(CODES),
)
FAST = Setting(True, tasks.FAST, (200, 201), ("cleaning-mnist",), tuple(CODES))


def algorithm_of(name: str, race: tasks.Race, rounds: int) -> FederatedAlgorithm:
    """Return an algorithm with its setting in docs/results/tasks.json."""
    if name == AUTO:
        return AutoFedBiO(rounds, batch_size=race.batch_size)
    cell = experiment.published_cells(tasks.PUBLISHED)[key_of(race.name, name)]
    scale = Scale(
        race.case.upper_step,
        race.curvature,
        race.batch_size,
        int(np.median(race.task.devices.lower_sizes)),
        rounds,
    )
    return SEARCHED[name].make(cell["setting"], scale)


def key_of(task: str, *rest: str) -> str:
    return ".".join((task, PARTITION, *rest))


def measure(name: str, method: str, code: str, setting: Setting) -> dict[str, Any]:
    """Return the final metric of each seed, NaN if it diverged, and the bytes."""
    race = tasks.race_of(name, PARTITION, setting.race)
    make = partial(algorithm_of, method, race)
    rounds = tasks.rounds_for(make(2), race, setting.race.samples)
    algorithm, transforms = make(rounds), CODES[code]
    if transforms:
        algorithm = with_transforms(algorithm, *transforms)
    task, metric = race.task, race.task.metrics[METRICS[name]]
    arguments = task.problem, algorithm, task.devices, task.x, task.y
    run = Run(*arguments, rounds=rounds, weights=task.devices.lower_sizes)
    # All seeds are one compiled program, whose numbers are those of `run`.
    run_to_end = final_points(run)
    points = run_to_end([(algorithm, seed) for seed in setting.seeds], rounds)
    costs = predict_costs(run)

    def value(index: int) -> float:
        # The accuracy of a model of NaN is that of a constant answer.
        x, y = points.of(index)
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((x, y)))
        return float(metric(x, y)) if finite else float("nan")

    return {
        "rounds": rounds,
        "metrics": [value(index) for index in range(len(setting.seeds))],
        "up": costs.bytes_up,
        "down": costs.bytes_down,
    }


def cells_of(
    names: tuple[str, ...], codes: tuple[str, ...], setting: Setting
) -> dict[str, Callable[[], Any]]:
    """Return the cells, code by code, so that an interrupted run has all tasks."""
    return {
        key_of(name, method, code): partial(measure, name, method, code, setting)
        for code in codes
        for method in ALGORITHMS
        for name in names
    }


class Band(NamedTuple):
    """The 95 % confidence interval of the mean metric without codes."""

    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Band":
        width = float(half_width(values))
        return cls(float(values.mean()) - width, float(values.mean()) + width)

    def place(self, mean: float) -> str:
        """Return whether a mean is inside the band, above it or below it."""
        if np.isnan(mean) or mean < self.low:
            return "below"
        return "above" if mean > self.high else "inside"


class Row(NamedTuple):
    """A code of one algorithm on one task, in comparison with the run without codes."""

    task: str
    algorithm: str
    code: str
    cell: Mapping[str, Any]
    plain: Mapping[str, Any]

    @property
    def values(self) -> np.ndarray:
        return np.asarray(self.cell["metrics"], float)

    @property
    def place(self) -> str:
        """The place of the mean: inside the band, above or below."""
        return Band.of(np.asarray(self.plain["metrics"])).place(self.values.mean())

    def fewer(self, *ways: str) -> float:
        """Return how many times fewer bytes are sent than without codes."""
        sent, plain = (sum(cell[way] for way in ways) for cell in self[3:])
        return float(plain) / sent if sent else float("nan")

    @property
    def entries(self) -> list[object]:
        """The entries of the table, in the order of `HEADER`."""
        values, cell = self.values, self.cell
        finite = np.isfinite(values)
        changes = values - np.asarray(self.plain["metrics"])
        up, down = cell["up"] / 1e6, cell["down"] / 1e6
        whole = finite.all()
        return [
            self.task,
            self.algorithm,
            self.code,
            METRICS[self.task],
            float(values.mean()),
            float(half_width(values)) if whole else float("nan"),
            float(changes.mean()),
            float(half_width(changes)) if whole else float("nan"),
            self.place,
            len(values),
            int((~finite).sum()),
            cell["rounds"],
            up,
            down,
            up + down,
            self.fewer("up"),
            self.fewer("down"),
            self.fewer("up", "down"),
        ]


def rows_of(results: Mapping[str, Any], setting: Setting) -> list[Row]:
    """Return a row for each finished cell whose run without codes is finished too."""
    keys = {
        (task, name, code): key_of(task, name, code)
        for task in setting.tasks
        for name in ALGORITHMS
        for code in setting.codes
    }
    return [
        Row(*which, results[key], results[keys[*which[:2], NONE]])
        for which, key in keys.items()
        if key in results and keys[*which[:2], NONE] in results
    ]


def summary(rows: list[Row], task: str) -> tuple[list[str], list[list[str]]]:
    """Return the table of a task for the documentation: codes × algorithms."""
    cells = {(row.code, row.algorithm): row for row in rows if row.task == task}
    methods = [n for n in ALGORITHMS if any(method == n for _, method in cells)]

    def text(row: Row | None) -> str:
        if row is None:
            return ""
        value = f"{row.values.mean():.4f} ± {half_width(row.values):.4f}"
        value += {"inside": "", "above": " ▲", "below": " ▼"}[row.place]
        ways = ("up",), ("down",), ("up", "down")
        return f"{value}; " + " / ".join(f"{row.fewer(*way):.3g}" for way in ways)

    body = [
        [code, *(text(cells.get((code, method))) for method in methods)]
        for code in dict.fromkeys(code for code, _ in cells)
    ]
    return ["code", *methods], body


def report(results: Mapping[str, Any], setting: Setting, directory: Path) -> None:
    """Print and write the tables of the finished cells."""
    rows = rows_of(results, setting)
    entries = [row.entries for row in rows]
    print_table(HEADER, [[short(entry) for entry in row] for row in entries])
    write_table(directory / "traffic.csv", HEADER, entries)
    for task in setting.tasks:
        if any(row.task == task for row in rows):
            write_markdown(directory / f"traffic-{task}.md", *summary(rows, task))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="small, as in CI")
    parser.add_argument("--only", choices=FULL.tasks, help="a single task")
    parser.add_argument("--codes", nargs="+", choices=list(CODES), help="some codes")
    parser.add_argument(
        "--published", action="store_true", help="compute nothing; only write tables"
    )
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = tasks.QUICK_COMPILATION
    jax.devices()  # reads the flags
    setting = FAST if options.fast else FULL
    published = None if options.fast else PUBLISHED
    if not options.published:
        names = (options.only,) if options.only else setting.tasks
        codes = tuple(options.codes or setting.codes)
        cells = cells_of(names, codes, setting)
        parameters = setting.fast, setting.race, setting.seeds, jax.__version__
        results = experiment.run_cells("traffic", parameters, cells, published)
    if published is not None:
        results = experiment.published_cells(published)
    report(results, setting, experiment.results_directory(setting.fast))


if __name__ == "__main__":
    main()
