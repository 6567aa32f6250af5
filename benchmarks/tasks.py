"""Every algorithm on real tasks, with the same tuning budget.

    python -m benchmarks.tasks            # all; about 2 hours on 2 cores
    python -m benchmarks.tasks --only cleaning-mnist
    python -m benchmarks.tasks --fast     # small versions, as in CI

A contender is tuned on a grid of 12 settings with a fifth of the samples; the best
three that survive a whole run with another seed are compared, and the best of these
runs with three more. What is best is decided by the upper loss on a fifth of the
validation examples that no device holds. A run ends when its devices have drawn the
budget of samples together; all start at y*(x) of the untuned x. Needs the data of
`python -m benchmarks.fetch_data`.
"""

import argparse
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import experiment, task_figures
from benchmarks.contenders import CONTENDERS, Steps, grid
from benchmarks.references import references, retrained
from benchmarks.task_figures import CENTRALISED
from benchmarks.task_list import CASES, Case
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel import FederatedAlgorithm, NoUploadsError, Round, run
from fedbilevel.problems import Task

PARTITIONS = {"iid": True, "heterogeneous": False}


class Setting(NamedTuple):
    """How much is run."""

    fast: bool
    samples: int
    tuning_share: float
    finalists: int
    seeds: int
    total_batch: int
    evaluations: int
    tasks: tuple[str, ...]
    contenders: tuple[str, ...]


FULL = Setting(False, 1_000_000, 0.2, 3, 3, 256, 10, tuple(CASES), tuple(CONTENDERS))
FAST = Setting(
    True, 20_000, 0.2, 2, 2, 32, 2, ("cleaning-mnist",), ("LocalBSGVRM", "FedBiO")
)
TUNING_SEEDS = 1000, 1001
"""Of the shortened runs and of the finalists; no reported run has them."""


@cache
def case_of(name: str, iid: bool, fast: bool) -> Case:
    return CASES[name](iid, fast)


@cache
def start_of(name: str, fast: bool) -> Any:
    """Return y*(x) of the untuned x, where all contenders start, as the paper asks."""
    case = case_of(name, True, fast)  # a partition leaves the pooled data alone
    return retrained(case, case.task.x)


def follow(
    case: Case,
    task: Task,
    algorithm: FederatedAlgorithm,
    samples: float,
    evaluations: int,
    seed: int,
) -> tuple[list[dict[str, float]], Any]:
    """Run until the samples are drawn; return what was seen on the way, and the end."""
    upper_loss = jax.jit(task.problem.upper_loss)
    seen: list[dict[str, float]] = []

    def look(done: Round) -> None:
        metrics = {n: float(m(done.x, done.y)) for n, m in task.metrics.items()}
        seen.append(
            {
                "samples": done.costs.samples,
                "rounds": done.number + 1,
                "exchanges": done.costs.exchanges,
                "bytes": done.costs.bytes_up + done.costs.bytes_down,
                "selection_loss": float(upper_loss(done.x, done.y, case.selection)),
                **metrics,
            }
        )

    # Weighed by their sizes, devices minimise what the references do: the pooled loss.
    rounds = run(
        task.problem,
        algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=10**9,
        seed=seed,
        weights=task.devices.lower_sizes,
    )
    try:
        for done in rounds:
            if done.costs.samples >= samples * (len(seen) + 1) / evaluations:
                look(done)
            if done.costs.samples >= samples:
                break
    except NoUploadsError:  # diverged: the state is that of the last good round
        look(done)
        seen[-1]["selection_loss"] = float("nan")
    return seen, done


def compete(name: str, case: Case, start: Any, setting: Setting) -> dict[str, Any]:
    """Tune one contender and run its best setting with every seed."""
    task = case.task
    make = CONTENDERS[name]
    batch_size = max(1, setting.total_batch // task.devices.device_count)
    settings = grid(name, task, case.upper_step, batch_size, case.headroom)
    task = task._replace(y=start)
    if setting.fast:
        settings = settings[1::4]

    def loss_of(steps: Steps, share: float, seed: int) -> float:
        seen, _ = follow(case, task, make(steps), share * setting.samples, 1, seed)
        loss = seen[-1]["selection_loss"]
        return loss if np.isfinite(loss) else float("inf")

    first, second = TUNING_SEEDS
    losses = [loss_of(steps, setting.tuning_share, first) for steps in settings]
    # Steps that win a short race may diverge in a long one: the next then takes part.
    finals: dict[int, float] = {}
    for place in np.argsort(losses):
        loss = loss_of(settings[place], 1.0, second)
        finals |= {int(place): loss} if np.isfinite(loss) else {}
        if len(finals) == setting.finalists:
            break
    if not finals:
        raise ArithmeticError(f"every setting of {name} diverged; widen its grid.")
    best = settings[min(finals, key=finals.__getitem__)]
    curves, retrainings = [], []
    for seed in range(setting.seeds):
        seen, done = follow(
            case, task, make(best), setting.samples, setting.evaluations, seed
        )
        curves.append(seen)
        if case.clean is not None:
            y = retrained(case, done.x)
            retrainings.append(task.metrics["accuracy"](done.x, y))
    steps_tried = [steps.upper for steps in settings]
    return {
        "upper_step": best.upper,
        "lower_step": best.lower,
        "terms": best.terms,
        "at_edge": best.upper in (min(steps_tried), max(steps_tried)),
        "tuning_losses": losses,
        "final_losses": list(finals.values()),
        "curves": curves,
        "retrained": retrainings,
    }


def cells_of(name: str, setting: Setting) -> dict[str, Callable[[], Any]]:
    cells: dict[str, Callable[[], Any]] = {}

    def refer() -> dict[str, Any]:
        case = case_of(name, True, setting.fast)
        task = case.task
        untuned = task.x, start_of(name, setting.fast)
        loss = float(task.problem.upper_loss(*untuned, case.selection))
        return {"start_loss": loss, "metrics": references(name, case)}

    def contend(contender: str, iid: bool) -> dict[str, Any]:
        case = case_of(name, iid, setting.fast)
        start = start_of(name, setting.fast)
        if contender == CENTRALISED:
            return compete("FedBiO", case.centralised, start, setting)
        return compete(contender, case, start, setting)

    cells[f"{name}.references"] = refer
    # The two partitions of a contender share its compiled programs: side by side.
    for contender in setting.contenders:
        for partition, iid in PARTITIONS.items():
            cells[f"{name}.{partition}.{contender}"] = partial(contend, contender, iid)
    cells[f"{name}.{CENTRALISED}"] = partial(contend, CENTRALISED, True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="small, as in CI")
    parser.add_argument("--only", choices=list(CASES), help="a single task")
    options = parser.parse_args()
    setting = FAST if options.fast else FULL
    names = (options.only,) if options.only else setting.tasks
    cells = {k: v for name in names for k, v in cells_of(name, setting).items()}
    results = experiment.run_cells("tasks", setting, cells)
    if options.only:
        return
    folder = experiment.results_folder(setting.fast)
    header, rows = task_figures.table(results, names, setting.contenders)
    print_table(header, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(folder / "tasks.csv", header, rows)
    for partition in PARTITIONS:
        experiment.write_markdown(
            folder / f"tasks-{partition}.md",
            *task_figures.summary(results, names, setting.contenders, partition),
        )
    task_figures.draw(results, names, setting.contenders, folder)
    conclude(bounds(results, setting))


def bounds(results: dict[str, Any], setting: Setting) -> list[Bound]:
    """Return the promise about cleaning MNIST, kept by one contender.

    It is the one that the selection examples choose, not the test examples.
    """
    cells = [results[f"cleaning-mnist.iid.{name}"] for name in setting.contenders]
    chosen = min(
        cells,
        key=lambda cell: np.mean([c[-1]["selection_loss"] for c in cell["curves"]]),
    )
    area = float(np.mean([curve[-1]["detection"] for curve in chosen["curves"]]))
    if setting.fast:  # 600 examples cannot keep the promise, but must beat chance
        return [Bound("AUC", area, 0.6, True)]
    reference = dict(results["cleaning-mnist.references"]["metrics"])
    clean = reference.pop("clean labels")
    honest = max(reference.values())
    share = (float(np.mean(chosen["retrained"])) - honest) / (clean - honest)
    return [Bound("AUC", area, 0.9, True), Bound("gap", share, 0.5, True)]


if __name__ == "__main__":
    main()
