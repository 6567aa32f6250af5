"""Tuning of two modules of PyTorch by `auto`, against the same runs without tuning.

    python -m benchmarks.torch_tasks           # several processes share the work
    python -m benchmarks.torch_tasks --fast    # small versions, as in CI

The tasks are those of `benchmarks.torch_models`. "Without tuning" is the same run with
x fixed at its start. Metrics are those of test examples, which no device has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import experiment
from benchmarks.experiment import half_width, write_markdown
from benchmarks.torch_models import Case, language, representation
from fedbilevel import AutoFedBiO, run
from fedbilevel.torch import TensorSimulation

TASKS = "representation", "language"
METHODS = "auto", "without tuning"


class Setting(NamedTuple):
    """The size of the benchmark."""

    devices: int
    rounds: dict[str, int]
    seeds: tuple[int, ...]
    images: int
    channels: int
    pieces: int
    steps: int


FULL = Setting(
    4, {"representation": 100, "language": 40}, (0, 1, 2), 500, 16, 2_000, 500
)
FAST = Setting(2, dict.fromkeys(TASKS, 4), (0,), 20, 4, 16, 2)


def case_of(name: str, setting: Setting, seed: int) -> Case:
    """Return a task by its name."""
    if name == "representation":
        return representation(setting.devices, setting.images, setting.channels, seed)
    return language(setting.devices, setting.pieces, setting.steps, seed)


def measure(name: str, method: str, setting: Setting, seed: int) -> dict[str, float]:
    """Return the metrics of the last x and y on test examples."""
    torch.set_num_threads(1)  # these tensors are too small for more
    case = case_of(name, setting, seed)
    rounds = setting.rounds[name]
    algorithm = AutoFedBiO(rounds, upper_rate=case.upper_rate)
    if method != "auto":
        algorithm = replace(algorithm, upper_rate=0.0)
    *_, last = run(
        case.problem,
        algorithm,
        case.devices,
        case.x,
        case.y,
        rounds=rounds,
        seed=seed,
        engine=TensorSimulation(vectorised=False),
    )
    metrics: dict[str, float] = case.metric(last.x, last.y)
    return metrics


def main() -> None:
    """Compute and write all cells."""
    options = experiment.arguments(__doc__, "small versions")
    setting = FAST if options.fast else FULL
    cells: dict[str, Callable[[], Any]] = {
        f"{name}.{method}.{seed}": partial(measure, name, method, setting, seed)
        for name in TASKS
        for method in METHODS
        for seed in setting.seeds
    }
    published = None if options.fast else options.directory / "torch-tasks.json"
    versions = setting, torch.__version__
    results = experiment.run_cells("torch-tasks", versions, cells, published)
    rows = table(results, setting.seeds)
    for row in rows:
        print(" | ".join(row))
    header = ["task", "test metric", *METHODS, "difference"]
    write_markdown(options.directory / "torch-tasks.md", header, rows)


def table(results: Mapping[str, Any], seeds: Sequence[int]) -> list[list[str]]:
    """Return the mean of each metric and of its difference between runs of a seed."""

    def text(values: np.ndarray) -> str:
        # A single seed has no interval.
        width = float(half_width(values)) if len(values) > 1 else 0.0
        return f"{values.mean():.3f} ± {width:.3f}"

    rows = []
    for name in TASKS:
        for metric in results[f"{name}.auto.{seeds[0]}"]:
            tuned, untuned = (
                np.array([results[f"{name}.{method}.{s}"][metric] for s in seeds])
                for method in METHODS
            )
            rows.append([name, metric, *map(text, (tuned, untuned, tuned - untuned))])
    return rows


if __name__ == "__main__":
    main()
