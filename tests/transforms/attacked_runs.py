"""Distances from x* of runs under attack, for tests and for the documentation.

Print the table with: python -m tests.transforms.attacked_runs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedbilevel import (
    CentredClipping,
    Clip,
    FedBiO,
    GeometricMedian,
    Run,
    TrimmedMean,
    with_transforms,
)
from fedbilevel.engines.final_points import final_points
from fedbilevel.problems import Quadratic, Task, quadratic_task, random_quadratic
from tests.transforms.attacked import Attacked
from tests.transforms.attacks import Rows
from tests.transforms.tables import ATTACKS, DEVICES

SEEDS, ROUNDS = 3, 600
DIVERGED = 1e12
"""Distance from which a run counts as diverged."""
HETEROGENEITY = 0.5
BAD = 0, 2, 4, 6, 8
SEARCHED_AT = 4
MEANS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "plain": ((),),
    "clip": tuple((Clip(norm),) for norm in (0.05, 0.1, 0.3, 1.0)),
    "trimmed": tuple((TrimmedMean(share),) for share in (0.1, 0.2, 0.3, 0.4)),
    "median": tuple((GeometricMedian(smoothing=s),) for s in (1e-3, 0.03, 0.3, 0.9)),
    "centred": tuple(
        (CentredClipping(radius, steps=3),) for radius in (0.05, 0.1, 0.3, 1.0)
    ),
}
"""The settings of each mean that are searched."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chosen:
    """One of the attacks by its number, so that all attacks share a program."""

    number: Any

    def __call__(self, honest: Rows, own: Rows) -> Rows:
        # `final_points` stacks all numbers of settings as floating point.
        number = jnp.asarray(self.number, int)
        rows: Rows = jax.lax.switch(number, tuple(ATTACKS.values()), honest, own)
        return rows


class Case(NamedTuple):
    """A heterogeneous quadratic, and the solution of its honest devices.

    A device has one example of each loss, so derivatives are exact: the updates of
    honest devices differ by their problems alone. The first devices are bad.
    """

    task: Task
    solution: Rows

    @classmethod
    def of(cls, bad: int, seed: int) -> "Case":
        quadratic = random_quadratic(
            devices=DEVICES, heterogeneity=HETEROGENEITY, seed=seed
        )
        honest = _without(quadratic, bad).solution()
        return cls(quadratic_task(quadratic, examples=1), honest)

    def distance(self, x: Rows) -> float:
        """Return the distance from the honest solution, which is 1 at the start."""
        return float(np.linalg.norm(x - self.solution) / np.linalg.norm(self.solution))


def _without(quadratic: Quadratic, bad: int) -> Quadratic:
    return replace(
        quadratic,
        matrices=quadratic.matrices[bad:],
        couplings=quadratic.couplings[bad:],
        offsets=quadratic.offsets[bad:],
        targets=quadratic.targets[bad:],
        shifts=quadratic.shifts[bad:],
    )


def under(attack: Any, bad: int, transforms: tuple[Any, ...]) -> Attacked:
    """Return FedBiO, which is correct on heterogeneous devices, under an attack."""
    own = attack if isinstance(attack, Chosen) else Partial(attack)
    # Without transforms devices send points; with a clip that never acts, changes.
    transforms = transforms or (Clip(1e18),)
    return Attacked(with_transforms(FedBiO(0.1), *transforms), own, bad)


def distances(settings: Sequence[tuple[Any, ...]], bad: int) -> Rows:
    """Return distances by seed, attack and setting; infinite after a divergence."""
    # Without bad devices all attacks are one.
    numbers = range(len(ATTACKS) if bad else 1)
    runs = [
        (under(Chosen(np.asarray(number)), bad, transforms), 0)
        for number in numbers
        for transforms in settings
    ]
    rows = []
    for seed in range(SEEDS):
        case = Case.of(bad, seed)
        task = case.task
        whole = Run(
            task.problem, runs[0][0], task.devices, task.x, task.y, rounds=ROUNDS
        )
        last = np.asarray(final_points(whole)(runs, ROUNDS).x)
        found = np.array([case.distance(x) for x in last])
        rows.append(np.where(found < DIVERGED, found, np.inf))
    return np.reshape(rows, (SEEDS, len(numbers), len(settings)))


class Column(NamedTuple):
    """The results of one mean.

    Attributes:
        setting: the setting with the smallest median distance under its worst attack
            with `SEARCHED_AT` bad devices.
        distances: distances by seed and attack, for each number of bad devices.
    """

    setting: tuple[Any, ...]
    distances: dict[int, Rows]

    @classmethod
    def of(cls, settings: Sequence[tuple[Any, ...]]) -> "Column":
        by_bad = {bad: distances(settings, bad) for bad in BAD}
        worst = np.median(by_bad[SEARCHED_AT], axis=0).max(axis=0)
        best = int(np.argmin(worst))
        return cls(
            settings[best], {bad: rows[..., best] for bad, rows in by_bad.items()}
        )

    def cell(self, bad: int, attack: int) -> str:
        """Return the median distance, and the largest."""
        found = self.distances[bad][:, attack]
        return f"{np.median(found):.2g} ({found.max():.2g})"


def main() -> None:
    columns = []
    for name, settings in MEANS.items():
        columns.append(Column.of(settings))
        print(f"{name}: {columns[-1].setting}", flush=True)
    print("| attack | bad devices |", " | ".join(MEANS), "|")
    for bad in BAD:
        for number, attack in enumerate(ATTACKS if bad else ["none"]):
            cells = [column.cell(bad, number) for column in columns]
            print(f"| {attack} | {bad / DEVICES:.0%} |", " | ".join(cells), "|")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
