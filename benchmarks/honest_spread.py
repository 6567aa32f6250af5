"""Exclusions of honest devices by distance limits on the real tasks.

    python -m benchmarks.honest_spread          # about 25 minutes on 2 cores
    python -m benchmarks.honest_spread --fast   # a small version, as in CI

A federation excludes an upload whose distance is many times the median device's
(`distance_limit`, by default 10). On heterogeneous devices honest uploads may be far
too. Each of the six tasks has a heterogeneous split and is run by FedBiO, LocalBSGM and
AutoFedBiO, with devices weighted by size as in the comparison. The table has the
fraction of honest uploads that a limit excludes, the number of devices that it excludes
in more than half of their rounds, and the final test metric. The imbalance task, with
100 devices, has batches of 2 examples in the comparison; it is run with 32 as well.
Sites require 128 by default; the bound is for batches of at least 10.
"""

from typing import NamedTuple

from benchmarks.contenders import SEARCHED, Scale
from benchmarks.task_list import METRICS, Partition
from benchmarks.tasks import FAST, FULL, Race, Setting, race_of
from benchmarks.timing import Bound, conclude, print_table, wants_fast
from fedbilevel import AutoFedBiO, FederatedAlgorithm, Limits, run
from fedbilevel.experiments.federation import DISTANCE_LIMIT

LIMITS = (3.0, 5.0, DISTANCE_LIMIT, 30.0)
USUAL = {"upper": 3.0, "lower": 0.5, "adjoint": 0.5, "final": 1.0, "local_steps": 5}
USUAL |= {"terms": 10, "scale": 0.5, "mixing": 0.1}
"""The settings of FedBiO and LocalBSGM, in the units of the comparison."""
FIXED = "FedBiO", "LocalBSGM"
ROUNDS = 100
LARGER, BOUNDED = 32, 10
MOST = 0.01
"""Largest fraction of honest uploads that the default limit may exclude."""


class Spread(NamedTuple):
    """The effect of a limit on honest devices.

    Attributes:
        excluded: fraction of their uploads that was excluded.
        frequent: number of devices excluded in more than half of their rounds.
        metric: final test metric.
    """

    excluded: float
    frequent: int
    metric: float


def main() -> None:
    fast = wants_fast(__doc__, "one task, five rounds")
    setting, rounds = (FAST, 5) if fast else (FULL, ROUNDS)
    rows, worst = [], 0.0
    races = [race_of(name, Partition.HETEROGENEOUS, setting) for name in setting.tasks]
    races += [
        race._replace(batch_size=LARGER)
        for race in races
        if race.batch_size < BOUNDED and not fast
    ]
    for race in races:
        for method, algorithm in contenders(race, rounds).items():
            without = spread(race, algorithm, rounds, setting, None)
            for limit in LIMITS:
                result = spread(race, algorithm, rounds, setting, limit)
                if limit == DISTANCE_LIMIT and race.batch_size >= BOUNDED:
                    worst = max(worst, result.excluded)
                rows.append(
                    [
                        race.name,
                        race.batch_size,
                        method,
                        f"{limit:g}",
                        f"{100 * result.excluded:.2f} %",
                        result.frequent,
                        f"{result.metric:.3f}",
                        f"{without.metric:.3f}",
                    ]
                )
                print(*rows[-1], flush=True)
    header = ["task", "batch", "algorithm", "limit", "excluded", "often", "metric"]
    header += ["no limit"]
    print_table(header, rows)
    conclude([Bound(f"excluded by {DISTANCE_LIMIT:g}, at most", worst, MOST)])


def contenders(race: Race, rounds: int) -> dict[str, FederatedAlgorithm]:
    scale = Scale(race.case.upper_step, race.curvature, race.batch_size, 1, rounds)
    return {
        **{name: SEARCHED[name].make(USUAL, scale) for name in FIXED},
        "auto": AutoFedBiO(rounds, batch_size=race.batch_size),
    }


def spread(
    race: Race,
    algorithm: FederatedAlgorithm,
    rounds: int,
    setting: Setting,
    limit: float | None,
) -> Spread:
    task = race.task
    *_, last = run(
        task.problem,
        algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=rounds,
        seed=setting.seeds[0],
        weights=task.devices.lower_sizes,
        limits=Limits(distance=limit),
    )
    exclusions = last.exclusions
    metric = float(task.metrics[METRICS[race.name]](last.x, last.y))
    return Spread(
        exclusions.excluded / exclusions.participations, exclusions.frequent, metric
    )


if __name__ == "__main__":
    main()
