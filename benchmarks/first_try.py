"""What a run without settings gets at its first try, beside a search of 50 settings.

    python -m benchmarks.first_try          # five seeds; about 5 minutes on 2 cores
    python -m benchmarks.first_try --fast   # one seed

The problems are such as users state themselves: that of docs/tutorials/custom-problem.md
and three that no tutorial has. The search draws 50 settings of FedBiO at random: the
rate of x over 4.5 orders of magnitude, those of y and z over 2 around one over the
largest curvature. Batches, local steps and rounds are the same. What counts is the mean
over seeds of the last upper loss, on all validation examples; the search has that of
its best setting, chosen by it. Both begin untuned, and improvement is counted from
where y has been trained with x as it began.
"""

import argparse
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.custom_problems import PROBLEMS
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel import AutoFedBiO, FedBiO, run, sweep
from fedbilevel.metrics import largest_curvature
from fedbilevel.problems import Task

DRAWS = 50
BATCH_SIZE = 64
LOCAL_STEPS = 5


class Setting(NamedTuple):
    """How much is run."""

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
        """The part of the search's improvement that the first try has."""
        gained = self.untuned - float(np.mean(self.automatic))
        return gained / (self.untuned - float(np.mean(self.searched)))


def compare(task: Task, setting: Setting) -> Losses:
    """Return the losses of a first try and of a search."""
    upper = task.devices.pooled.upper

    @jax.jit
    def loss(x: Any, y: Any) -> Any:
        return task.problem.upper_loss(x, y, upper)

    def at_first(seed: int, **settings: float) -> float:
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
        np.mean([at_first(seed, upper_rate=0.0) for seed in setting.seeds]).item(),
        [at_first(seed) for seed in setting.seeds],
        _search(task, setting, loss),
    )


def _search(task: Task, setting: Setting, loss: Any) -> list[float]:
    curvature = largest_curvature(task.problem, task.devices, task.x, task.y)
    generator = np.random.default_rng(0)

    def drawn() -> FedBiO:
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

    done = sweep(
        task.problem,
        [drawn() for _ in range(DRAWS)],
        task.devices,
        task.x,
        task.y,
        rounds=setting.rounds,
        seeds=setting.seeds,
        measure=lambda server: loss(server.x, server.y),
    )
    last = np.asarray(done.measurements)[:, :, -1]
    means = np.where(np.isfinite(last).all(axis=1), last.mean(axis=1), np.inf)
    return [float(one) for one in last[int(np.argmin(means))]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="one seed, as in CI")
    setting = FAST if parser.parse_args().fast else FULL
    found = {name: compare(PROBLEMS[name](), setting) for name in PROBLEMS}
    rows = [
        [
            name,
            f"{losses.untuned:.4f}",
            " ".join(f"{one:.4f}" for one in losses.automatic),
            " ".join(f"{one:.4f}" for one in losses.searched),
            f"{losses.share:.2f}",
        ]
        for name, losses in found.items()
    ]
    header = ["problem", "untuned", "AutoFedBiO, each seed", "best of 50", "share"]
    print_table(header, rows)
    conclude([Bound(name, losses.share, 0.9, True) for name, losses in found.items()])


if __name__ == "__main__":
    main()
