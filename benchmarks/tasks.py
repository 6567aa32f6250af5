"""Comparison on real tasks: every algorithm after the same search, and "auto".

    python -m benchmarks.tasks            # about 6 hours on 2 cores, in two processes
    python -m benchmarks.tasks --only cleaning-mnist
    python -m benchmarks.tasks --fast     # small versions, as in CI
    python -m benchmarks.tasks --published   # only tables of docs/results/tasks.json

A run ends when its devices have drawn the budget of samples together; all start at
y*(x) of the untuned x. The search (`benchmarks.search`) minimises the upper loss on a
fifth of the validation examples that no device holds. The best setting is run with five
seeds that the search does not use. A seed fails if its final upper loss is not below
the initial one, or if it detects wrong labels worse than chance. Finished cells are
stored; several processes share the work. It needs the data of
`python -m benchmarks.fetch_data`.
"""

import argparse
import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import experiment
from benchmarks.contenders import AUTO, SEARCHED, TWO_GRADIENTS, Scale
from benchmarks.references import references, retrained
from benchmarks.search import Effort, at_edges, search
from benchmarks.task_list import CASES, Case, Partition, partitions_of
from fedbilevel import (
    AutoFedBiO,
    Costs,
    FederatedAlgorithm,
    NoUploadsError,
    Run,
    predict_costs,
    run,
)
from fedbilevel.metrics.suggestion import batch_curvature
from fedbilevel.problems import Task

QUICK_COMPILATION = "--xla_llvm_disable_expensive_passes=true"
"""A flag that halves the compile time and does not change the run time."""
PUBLISHED = experiment.RESULTS / "tasks.json"
SHORT = "cleaning-mnist", "cleaning-fashion", "regularisation-adult"
"""Tasks with the longer search."""
ONE_DEVICE = "FedBiO"
"""The algorithm that is run with all rows on one device."""


class Setting(NamedTuple):
    """The size of the comparison; `longer` is for tasks whose runs are short."""

    fast: bool
    samples: int
    effort: Effort
    longer: Effort
    seeds: tuple[int, ...]
    total_batch: int
    evaluations: int
    tasks: tuple[str, ...]
    contenders: tuple[str, ...]


FULL = Setting(
    False,
    1_000_000,
    Effort(draws=16, survivors=3, finals=((2, 2), (1, 10)), runs=20, wider=6),
    Effort(draws=16, survivors=4, finals=((3, 2), (2, 4), (1, 10)), runs=30, wider=6),
    (200, 201, 202, 203, 204),
    256,
    10,
    tuple(CASES),
    (*SEARCHED, AUTO),
)
FAST = Setting(
    True,
    20_000,
    Effort(draws=3, survivors=1, finals=((1, 2),), runs=3, wider=1),
    Effort(draws=3, survivors=1, finals=((1, 2),), runs=3, wider=1),
    (200, 201),
    32,
    2,
    ("cleaning-mnist",),
    ("LocalBSGVRM", "FedBiO", AUTO),
)


class Race(NamedTuple):
    """A task on a partition, shared by all contenders.

    Attributes:
        name: name of the task.
        case: the task with its data.
        task: the task with its devices; y starts at y*(x).
        selection_loss: function for the upper loss on the selection examples.
        start_loss: selection loss of the initial point.
        curvature: L.
        batch_size: size of every batch.
        round_samples: samples of the first and of a later round, by program structure.
    """

    name: str
    case: Case
    task: Task
    selection_loss: Callable[[Any, Any], Any]
    start_loss: float
    curvature: float
    batch_size: int
    round_samples: dict[Any, tuple[int, int]]


@cache
def start_of(name: str, fast: bool) -> Any:
    """Return y*(x) of the untuned x, the initial y of all contenders."""
    case = CASES[name](Partition.RANDOM, fast)  # pooled data are the same for all
    return retrained(case, case.task.x)


@cache
def race_of(name: str, partition: Partition, setting: Setting) -> Race:
    case = CASES[name](partition, setting.fast)
    task = case.task._replace(y=start_of(name, setting.fast))
    size = max(1, setting.total_batch // task.devices.device_count)
    selection = jax.tree.map(jnp.asarray, case.selection)
    loss = jax.jit(lambda x, y: task.problem.upper_loss(x, y, selection))
    curvature = batch_curvature(
        task.problem,
        task.devices,
        task.x,
        task.y,
        batch_size=size,
        rounds=200,
        weights=task.devices.lower_sizes,
    )
    start = float(loss(task.x, task.y))
    return Race(name, case, task, loss, start, curvature, size, {})


def work_of(algorithm: Any, task: Task) -> float:
    """Return the fraction of local steps that devices take; below 1 for ShroFBO."""
    per_step = getattr(algorithm, "examples_per_step", None)
    if per_step is None:
        return 1.0
    steps = np.ceil(task.devices.lower_sizes / per_step)
    return float(
        np.minimum(steps, algorithm.local_steps).mean() / algorithm.local_steps
    )


def rounds_for(algorithm: FederatedAlgorithm, race: Race, samples: float) -> int:
    """Return the number of rounds that draw a number of samples."""
    task, structure = race.task, jax.tree.structure(algorithm)
    if structure not in race.round_samples:
        arguments = task.problem, algorithm, task.devices, task.x, task.y
        first, second = (
            predict_costs(Run(*arguments, rounds=n)).samples for n in (1, 2)
        )
        race.round_samples[structure] = first, second - first
    share = work_of(algorithm, task)
    first, later = race.round_samples[structure]
    return 1 + max(0, int(np.ceil((samples / share - first) / later - 1e-9)))


def follow(
    race: Race,
    make: Callable[[int], FederatedAlgorithm],
    samples: float,
    evaluations: int,
    seed: int,
) -> tuple[list[dict[str, float]], Any]:
    """Run until the samples are drawn; return the measurements and the last x.

    Args:
        race: the task.
        make: function from the number of rounds to the algorithm.
        samples: number of samples to draw.
        evaluations: number of measurements.
        seed: seed of the run.
    """
    task = race.task
    # AutoFedBiO needs two rounds, since its first round only measures.
    rounds = rounds_for(make(2), race, samples)
    algorithm = make(rounds)
    share = work_of(algorithm, task)
    inner: Any = getattr(algorithm, "algorithm", algorithm)
    measured_rounds = {
        int(np.ceil((k + 1) * rounds / evaluations)) for k in range(evaluations)
    }
    measurements: list[dict[str, float]] = []

    def measure(number: int, x: Any, y: Any, costs: Costs) -> None:
        measurements.append(
            {
                "samples": round(share * costs.samples),
                "rounds": number,
                "steps": number * inner.local_steps,
                "exchanges": costs.exchanges,
                "bytes": costs.bytes,
                "selection_loss": float(race.selection_loss(x, y)),
                **{n: float(metric(x, y)) for n, metric in task.metrics.items()},
            }
        )

    # Weighted by size, devices minimise the pooled loss, as the references do.
    number, x, y, costs = 0, task.x, task.y, Costs()
    try:
        for r in run(
            task.problem,
            algorithm,
            task.devices,
            task.x,
            task.y,
            rounds=rounds,
            seed=seed,
            weights=task.devices.lower_sizes,
        ):
            number, x, y, costs = r.number + 1, r.x, r.y, r.costs
            if number in measured_rounds:
                measure(number, x, y, costs)
    except NoUploadsError:  # diverged: the point is that of the last finite round
        measure(number, x, y, costs)
        measurements[-1]["selection_loss"] = float("nan")
    return measurements, x


def loss_after(
    race: Race, make: Callable[[int], FederatedAlgorithm], samples: float, seed: int
) -> float:
    """Return the upper loss at the end of a run, infinite if it diverged."""
    measurements, _ = follow(race, make, samples, 1, seed)
    loss = measurements[-1]["selection_loss"]
    return loss if np.isfinite(loss) else float("inf")


def compete(contender: str, race: Race, setting: Setting) -> dict[str, Any]:
    """Search a contender's settings, and run the best with every reported seed."""
    task = race.task
    if contender == AUTO:

        def make_auto(rounds: int) -> FederatedAlgorithm:
            return AutoFedBiO(rounds, batch_size=race.batch_size)

        return _report_runs(make_auto, race, setting)
    chosen = SEARCHED[contender]

    def make(values: Any, rounds: int) -> FederatedAlgorithm:
        median = int(np.median(task.devices.lower_sizes))
        scale = Scale(
            race.case.upper_step, race.curvature, race.batch_size, median, rounds
        )
        return chosen.make(values, scale)

    def loss(values: Any, share: float, seed: int) -> float:
        return loss_after(race, partial(make, values), share * setting.samples, seed)

    effort = setting.longer if race.name in SHORT else setting.effort
    result = search(chosen.names, loss, race.start_loss, effort)
    return {
        **_report_runs(partial(make, result.best), race, setting),
        "setting": result.best,
        "at_edges": at_edges(result.best),
        "whole": result.whole,
        "full_runs": result.runs,
        "drawn": result.drawn,
        "halfway": result.halfway,
        "two_gradients": contender in TWO_GRADIENTS,
    }


def _report_runs(
    make: Callable[[int], FederatedAlgorithm], race: Race, setting: Setting
) -> dict[str, Any]:
    curves, accuracy = [], None
    for seed in setting.seeds:
        measurements, x = follow(race, make, setting.samples, setting.evaluations, seed)
        curves.append(measurements)
        if race.case.clean is not None and accuracy is None:
            y = retrained(race.case, x)
            accuracy = float(race.task.metrics["accuracy"](x, y))
    return {"curves": curves, "retrained": accuracy, "start_loss": race.start_loss}


def cells_of(name: str, setting: Setting) -> dict[str, Callable[[], Any]]:
    def refer() -> dict[str, Any]:
        case = CASES[name](Partition.RANDOM, setting.fast)
        return {"metrics": references(name, case)}

    def contend(contender: str, partition: Partition) -> dict[str, Any]:
        return compete(contender, race_of(name, partition, setting), setting)

    cells: dict[str, Callable[[], Any]] = {f"{name}.references": refer}
    for partition in partitions_of(name):
        for contender in reversed(setting.contenders):
            key = f"{name}.{partition}.{contender}"
            cells[key] = partial(contend, contender, partition)
    single = partial(contend, ONE_DEVICE, Partition.ONE)
    return cells | {f"{name}.{Partition.ONE}.{ONE_DEVICE}": single}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="small, as in CI")
    parser.add_argument("--only", choices=list(CASES), help="a single task")
    parser.add_argument(
        "--published", action="store_true", help="compute nothing; only write tables"
    )
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = QUICK_COMPILATION
    jax.devices()  # reads the flags
    setting = FAST if options.fast else FULL
    names = (options.only,) if options.only else setting.tasks
    cells = {k: v for name in names for k, v in cells_of(name, setting).items()}
    published = None if options.fast else PUBLISHED
    if options.published:
        results = experiment.published_cells(PUBLISHED)
    else:
        parameters = setting, QUICK_COMPILATION, jax.__version__
        results = experiment.run_cells("tasks", parameters, cells, published)
    if missing := [name for name in cells if name not in results]:
        print(f"{len(missing)} of {len(cells)} cells are missing: {missing[0]}, …")
        return
    if not options.only:
        # Imported here, so that it is not part of the fingerprint of the cells.
        from benchmarks.task_report import report

        directory = experiment.results_directory(setting.fast)
        report(results, setting.tasks, setting.contenders, directory)


if __name__ == "__main__":
    main()
