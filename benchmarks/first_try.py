"""A first run without settings, compared with a search of 50 settings.

    python -m benchmarks.first_try          # five seeds; about 5 minutes on 2 cores
    python -m benchmarks.first_try --fast   # one seed

The problems are custom problems: that of docs/tutorials/custom-problem.md and three
others. The search draws 50 settings of FedBiO at random: the rate of x over 4.5 orders
of magnitude, those of y and z over 2 around one over the largest curvature. Batches,
local steps and rounds are the same. The score is the mean over seeds of the last upper
loss, on all validation examples; the score of the search is that of its best setting.
The improvement is relative to training y with x fixed at its initial value.
"""

import argparse
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.custom_problems import PROBLEMS
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel import AutoFedBiO, FedBiO, Run, run, sweep
from fedbilevel.metrics import largest_curvature
from fedbilevel.problems import Task

DRAWS = 50
BATCH_SIZE = 64
LOCAL_STEPS = 5


class Setting(NamedTuple):
    """The size of the benchmark."""

    rounds: int
    seeds: tuple[int, ...]


FULL = Setting(400, (0, 1, 2, 3, 4))
FAST = Setting(400, (0,))


class Losses(NamedTuple):
    """Upper losses on all validation examples: untuned, and one for each seed."""

    untuned: float
    automatic: list[float]
    searched: list[float]

    @property
    def share(self) -> float:
        """The improvement of the first try over that of the search."""
        gain = self.untuned - float(np.mean(self.automatic))
        return gain / (self.untuned - float(np.mean(self.searched)))


def compare(task: Task, setting: Setting) -> Losses:
    """Return the losses of a first try and of a search."""
    upper = task.devices.pooled.upper

    @jax.jit
    def loss(x: Any, y: Any) -> Any:
        return task.problem.upper_loss(x, y, upper)

    def run_auto(seed: int, **settings: float) -> float:
        algorithm = AutoFedBiO(
            setting.rounds,
            local_steps=LOCAL_STEPS,
            batch_size=BATCH_SIZE,
            **settings,
        )
        *_, last = run(
            task.problem,
            algorithm,
            task.devices,
            task.x,
            task.y,
            rounds=setting.rounds,
            seed=seed,
        )
        return float(loss(last.x, last.y))

    return Losses(
        np.mean([run_auto(seed, upper_rate=0.0) for seed in setting.seeds]).item(),
        [run_auto(seed) for seed in setting.seeds],
        _search(task, setting, loss),
    )


def _search(task: Task, setting: Setting, loss: Any) -> list[float]:
    curvature = largest_curvature(task.problem, task.devices, task.x, task.y)
    generator = np.random.default_rng(0)

    def draw_setting() -> FedBiO:
        upper, lower, adjoint = 10 ** generator.uniform(
            (-2.0, -1.5, -1.5), (2.5, 0.5, 0.5)
        )
        return FedBiO(
            1.0,
            float(upper),
            float(lower / curvature),
            float(adjoint / curvature),
            local_steps=LOCAL_STEPS,
            batch_size=BATCH_SIZE,
        )

    settings = [draw_setting() for _ in range(DRAWS)]
    inputs = task.problem, settings[0], task.devices, task.x, task.y
    swept = sweep(
        Run(*inputs, rounds=setting.rounds),
        settings,
        seeds=setting.seeds,
        measure=lambda server: loss(server.x, server.y),
    )
    last = np.asarray(swept.measurements)[:, :, -1]
    means = np.where(np.isfinite(last).all(axis=1), last.mean(axis=1), np.inf)
    return [float(loss) for loss in last[int(np.argmin(means))]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="one seed, as in CI")
    setting = FAST if parser.parse_args().fast else FULL
    results = {name: compare(PROBLEMS[name](), setting) for name in PROBLEMS}
    rows = [
        [
            name,
            f"{losses.untuned:.4f}",
            " ".join(f"{loss:.4f}" for loss in losses.automatic),
            " ".join(f"{loss:.4f}" for loss in losses.searched),
            f"{losses.share:.2f}",
        ]
        for name, losses in results.items()
    ]
    header = ["problem", "untuned", "AutoFedBiO, each seed", "best of 50", "share"]
    print_table(header, rows)
    conclude([Bound(name, losses.share, 0.9, True) for name, losses in results.items()])


if __name__ == "__main__":
    main()
