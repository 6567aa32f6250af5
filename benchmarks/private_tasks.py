"""Utility of differential privacy by device: test metric at ε = 1, 2, 4 and 8.

    python -m benchmarks.private_tasks            # about an hour on 2 cores, in two
    python -m benchmarks.private_tasks --only regularisation-adult
    python -m benchmarks.private_tasks --fast     # small versions, as in CI
    python -m benchmarks.private_tasks --missing  # only what private-tasks.json lacks
    python -m benchmarks.private_tasks --published    # only tables and figure

Thousands of simulated devices have a few examples each, and a tenth of them, a secret
sample, participates in a round. Updates are clipped by `AdaptiveClip()`, and the server
adds `GaussianNoise` whose ε after the last round is that of the table; δ is 1e-5. All
start at y = 0. Images are averaged over 2 × 2 pixels, for noise grows with the number
of variables.

`auto` has its defaults. FedBiO and LocalBSGM have settings from the same search
(`benchmarks.search`), one without noise and one at ε = 2, which is used for every ε. It
minimises the loss on public examples that no device has; its runs on the devices' data
are not counted in ε. "x fixed" is FedBiO with its setting and an upper rate of zero.

Finished cells are stored; several processes share the work. It needs the data of
`python -m benchmarks.fetch_data`.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt

from benchmarks import experiment
from benchmarks.contenders import AUTO, SEARCHED, Scale
from benchmarks.experiment import half_width, save_figure, write_markdown, write_table
from benchmarks.fitting import softmax
from benchmarks.search import Effort, at_edges, search
from benchmarks.task_list import METRICS
from fedbilevel import (
    AdaptiveClip,
    AutoFedBiO,
    FederatedAlgorithm,
    GaussianNoise,
    NoUploadsError,
    UniformSample,
    datasets,
    run,
    with_transforms,
)
from fedbilevel.data.partitions import take
from fedbilevel.datasets import DataSet, LabelledData
from fedbilevel.engines.spending import spending_of_means
from fedbilevel.metrics.suggestion import batch_curvature
from fedbilevel.privacy import WithoutReplacement
from fedbilevel.privacy.calibration import smallest_noise
from fedbilevel.problems import (
    LabelledRows,
    Split,
    Task,
    cleaning_network,
    long_tail,
    loss_tuning,
    redraw_labels,
    regularisation,
)

PUBLISHED = experiment.RESULTS / "private-tasks.json"
DELTA = 1e-5
FIXED = "x fixed"
NO_NOISE = "none"
LEVELS = (NO_NOISE, "8", "4", "2", "1")
"""The ε of the tables; without noise, updates are not clipped either."""
SEARCHED_LEVEL = "2"
HEADER = [
    "task",
    "devices",
    "algorithm",
    "epsilon",
    "multiplier",
    "metric",
    "mean",
    "half_width",
    "lowest",
    "highest",
    "failed",
]


class Setting(NamedTuple):
    """The size of the benchmark; devices are those of a task, by its name."""

    fast: bool
    devices: Mapping[str, int]
    share: float
    rounds: int
    effort: Effort
    seeds: tuple[int, ...]
    levels: tuple[str, ...]
    methods: tuple[str, ...]


METHODS = (AUTO, "FedBiO", "LocalBSGM", FIXED)
FULL = Setting(
    False,
    {"cleaning-mnist": 5_000, "imbalance-mnist": 2_000, "regularisation-adult": 2_000},
    0.1,
    100,
    Effort(draws=8, survivors=2, finals=((2, 1), (1, 2)), runs=4, wider=3),
    (200, 201, 202),
    LEVELS,
    METHODS,
)
FAST = Setting(
    True,
    {"regularisation-adult": 100},
    0.5,
    4,
    Effort(draws=2, survivors=1, finals=((1, 1),), runs=1, wider=0),
    (200, 201),
    (NO_NOISE, "2"),
    (AUTO, "FedBiO", FIXED),
)
BATCH_SIZE = 5
PUBLIC = 500
"""Number of public examples, which no device has."""


class Case(NamedTuple):
    """A task with public examples.

    Attributes:
        task: the task with its devices.
        public: the same problem on the public examples, in halves for both losses.
        rows: the public examples.
        test: test examples.
        classes: number of classes.
        upper_step: smallest upper step to draw.
        curvature: L, of the public examples.
    """

    task: Task
    public: Task
    rows: LabelledRows
    test: LabelledData
    classes: int
    upper_step: float
    curvature: float


@cache
def case_of(name: str, devices: int) -> Case:
    """Return a task; devices have equal numbers of rows, but for one."""
    source = datasets.adult() if name.endswith("adult") else _small(datasets.mnist())
    order = np.random.default_rng(0).permutation(len(source.train.labels))
    public, *parts = _parts(name, take(source.train, order))
    wrong = None
    training, validation = parts
    if name.startswith("cleaning"):
        redrawn = redraw_labels(training.labels, 0.5, source.classes, seed=1)
        training, wrong = training._replace(labels=redrawn.labels), redrawn.wrong
    rows = LabelledRows(*public)
    # The network's hints come from a model of the public examples.
    start = jnp.zeros((source.classes, public.features.shape[1]))
    hint = partial(softmax, start, [rows], ridge=1e-2)

    def make(split: Split, wrong: np.ndarray | None) -> Task:
        if name.startswith("cleaning"):
            model = np.asarray(hint())
            return cleaning_network(split, model=model, ridge=1e-3, wrong=wrong)
        if name.startswith("imbalance"):
            return loss_tuning(split, ridge=1e-3)
        return regularisation(split, penalty=1e-2)

    sizes = (len(training.labels), len(validation.labels))
    held = [np.array_split(np.arange(size), devices) for size in sizes]
    split = Split(training, validation, source.test, held[0], held[1], source.classes)
    task = make(split, wrong)
    half = np.arange(PUBLIC // 2)
    first, second = take(public, half), take(public, half + PUBLIC // 2)
    halves = Split(first, second, source.test, [half], [half], source.classes)
    small = make(halves, None)
    curvature = batch_curvature(
        small.problem,
        small.devices,
        small.x,
        small.y,
        batch_size=BATCH_SIZE,
        rounds=100,
    )
    upper_step = 0.1 if name.endswith("adult") else 0.03
    return Case(task, small, rows, source.test, source.classes, upper_step, curvature)


def _parts(name: str, table: LabelledData) -> list[LabelledData]:
    """Return public, training and validation examples."""
    share = 6 if name.startswith("cleaning") else 3
    count = len(table.labels)
    ends = PUBLIC, PUBLIC + (count - PUBLIC) // share
    public, validation, training = (
        take(table, np.arange(low, high))
        for low, high in zip((0, *ends), (*ends, count), strict=True)
    )
    if name.startswith("imbalance"):
        training = take(training, long_tail(training.labels, 10, ratio=100.0, seed=0))
    return [public, training, validation]


def _small(source: DataSet) -> DataSet:
    """Return images of 28 × 28 pixels averaged over 2 × 2, with a constant feature."""

    def pool(table: LabelledData) -> LabelledData:
        pixels = table.features[:, : 28 * 28].reshape(-1, 14, 2, 14, 2)
        images = pixels.mean((2, 4)).reshape(-1, 14 * 14)
        constant = table.features[:, 28 * 28 :]
        return LabelledData(np.concatenate([images, constant], 1), table.labels)

    return source._replace(train=pool(source.train), test=pool(source.test))


def noise_of(algorithm: Any, case: Case, level: str, setting: Setting) -> float:
    """Return the noise multiplier of an algorithm for an ε."""
    count = case.task.devices.device_count
    sampling = WithoutReplacement(round(setting.share * count), count)
    usual = len(algorithm.phases(case.task.problem))
    opening = len(algorithm.opening(case.task.problem)) or usual
    return _noise(opening, usual, sampling, setting.rounds, level)


@cache
def _noise(
    opening: int, usual: int, sampling: WithoutReplacement, rounds: int, level: str
) -> float:
    def spend(multiplier: float) -> float:
        spending = spending_of_means(multiplier, opening, usual, sampling, DELTA)
        return spending.epsilon_after(rounds)

    return smallest_noise(spend, float(level))


def private(
    algorithm: FederatedAlgorithm, case: Case, level: str, setting: Setting
) -> FederatedAlgorithm:
    """Return an algorithm whose ε after all rounds is that of a level."""
    if level == NO_NOISE:
        return algorithm
    multiplier = noise_of(algorithm, case, level, setting)
    noise = GaussianNoise(multiplier, delta=DELTA)
    return with_transforms(algorithm, AdaptiveClip(), noise)


def algorithm_of(
    method: str, values: Mapping[str, float], case: Case, setting: Setting
) -> FederatedAlgorithm:
    """Return an algorithm with the values of its searched settings."""
    if method == AUTO:
        return AutoFedBiO(setting.rounds, batch_size=BATCH_SIZE)
    sizes = case.task.devices.lower_sizes
    scale = Scale(
        case.upper_step,
        case.curvature,
        BATCH_SIZE,
        int(np.median(sizes)),
        setting.rounds,
    )
    if method == FIXED:
        return SEARCHED["FedBiO"].make({**values, "upper": 0.0}, scale)
    return SEARCHED[method].make(values, scale)


def last_point(
    algorithm: FederatedAlgorithm, case: Case, rounds: int, seed: int, share: float
) -> tuple[Any, Any] | None:
    """Return the last x and y; None if the run diverged."""
    task = case.task
    try:
        *_, last = run(
            task.problem,
            algorithm,
            task.devices,
            task.x,
            task.y,
            rounds=rounds,
            seed=seed,
            participation=UniformSample(round(share * task.devices.device_count)),
        )
    except NoUploadsError:
        return None
    point = last.x, last.y
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(point))
    return point if finite else None


def search_settings(
    name: str, method: str, level: str, setting: Setting
) -> dict[str, Any]:
    """Return the best setting of a method on the public examples."""
    case = case_of(name, setting.devices[name])
    public = jax.tree.map(jnp.asarray, case.rows)
    upper_loss = jax.jit(lambda x, y: case.task.problem.upper_loss(x, y, public))

    def loss(values: Mapping[str, float], share: float, seed: int) -> float:
        algorithm = algorithm_of(method, values, case, setting)
        # The noise of a shorter run is that of all rounds.
        algorithm = private(algorithm, case, level, setting)
        rounds = max(1, round(share * setting.rounds))
        point = last_point(algorithm, case, rounds, seed, setting.share)
        value = float("nan") if point is None else float(upper_loss(*point))
        return value if np.isfinite(value) else float("inf")

    start = float(upper_loss(case.task.x, case.task.y))
    result = search(SEARCHED[method].names, loss, start, setting.effort)
    return {
        "setting": result.best,
        "at_edges": at_edges(result.best),
        "whole": result.whole,
        "full_runs": result.runs,
        "drawn": result.drawn,
    }


def measure(
    name: str, method: str, level: str, settings: Callable[[], Any], setting: Setting
) -> dict[str, Any]:
    """Return the test metric of each seed, NaN if it diverged."""
    case = case_of(name, setting.devices[name])
    values = {} if method == AUTO else settings()["setting"]
    algorithm = algorithm_of(method, values, case, setting)
    multiplier = 0.0
    if level != NO_NOISE:
        multiplier = noise_of(algorithm, case, level, setting)
    algorithm = private(algorithm, case, level, setting)
    metric = case.task.metrics[METRICS[name]]

    def value(seed: int) -> float:
        point = last_point(algorithm, case, setting.rounds, seed, setting.share)
        return float("nan") if point is None else float(metric(*point))

    metrics = [value(seed) for seed in setting.seeds]
    return {"metrics": metrics, "multiplier": multiplier}


def refer(name: str, setting: Setting) -> dict[str, Any]:
    """Return the metric of a model of the public examples alone."""
    case = case_of(name, setting.devices[name])
    start = jnp.zeros((case.classes, case.rows.features.shape[1]))
    half = PUBLIC // 2
    first, second = (
        LabelledRows(case.rows.features[part], case.rows.labels[part])
        for part in (slice(None, half), slice(half, None))
    )
    metric = case.task.metrics[METRICS[name]]

    def held_out(ridge: float) -> float:
        model = np.asarray(softmax(start, [first], ridge))
        answers = (np.asarray(second.features) @ model.T).argmax(1)
        return float((answers == np.asarray(second.labels)).mean())

    ridge = max((1e-1, 1e-2, 1e-3, 1e-4), key=held_out)
    model = softmax(start, [case.rows], ridge)
    return {"metric": float(metric(case.task.x, model)), "ridge": ridge}


def cells_of(names: tuple[str, ...], setting: Setting) -> dict[str, Callable[[], Any]]:
    """Return the cells: of the searches first, since others need their settings."""
    cells: dict[str, Callable[[], Any]] = {
        f"{name}.public": partial(refer, name, setting) for name in names
    }
    searched = [m for m in setting.methods if m not in (AUTO, FIXED)]
    for name in names:
        for method in searched:
            for level in (NO_NOISE, SEARCHED_LEVEL):
                key = f"{name}.{method}.search.{level}"
                cells[key] = partial(search_settings, name, method, level, setting)
    return cells


def runs_of(
    names: tuple[str, ...], setting: Setting, found: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the cells of reported runs, with the settings that were found."""
    cells: dict[str, Callable[[], Any]] = {}
    for name in names:
        for level in setting.levels:
            at = NO_NOISE if level == NO_NOISE else SEARCHED_LEVEL
            for method in setting.methods:
                of = "FedBiO" if method == FIXED else method
                settings = partial(found.get, f"{name}.{of}.search.{at}")
                cells[f"{name}.{method}.{level}"] = partial(
                    measure, name, method, level, settings, setting
                )
    return cells


def text_of(cell: Mapping[str, Any]) -> str:
    """Return the mean of the seeds, with its 95 % interval."""
    values = np.asarray(cell["metrics"], float)
    failed = int((~np.isfinite(values)).sum())
    if failed:
        return f"{failed} of {len(values)} failed"
    return f"{values.mean():.3f} ± {half_width(values):.3f}"


def report(
    results: Mapping[str, Any], names: tuple[str, ...], setting: Setting, directory: Any
) -> None:
    """Print and write the tables and the figure of the tasks that are finished."""
    names = tuple(
        name for name in names if runs_of((name,), setting, {}).keys() <= results.keys()
    )
    if not names:
        print("No task has all cells.")
        return
    rows, table = [], []
    for name in names:
        count = setting.devices[name]
        for method in setting.methods:
            texts = []
            for level in setting.levels:
                cell = results[f"{name}.{method}.{level}"]
                values = np.asarray(cell["metrics"], float)
                whole = np.isfinite(values)
                width = float(half_width(values)) if whole.all() else float("nan")
                ends = values[whole].min(initial=np.inf), values[whole].max(initial=0)
                rows.append(
                    [
                        name,
                        count,
                        method,
                        level,
                        cell["multiplier"],
                        METRICS[name],
                        float(values.mean()),
                        width,
                        *map(float, ends),
                        int((~whole).sum()),
                    ]
                )
                texts.append(text_of(cell))
            table.append([name, method, *texts])
        public = f"{results[f'{name}.public']['metric']:.3f}"
        table.append([name, "public examples alone", public, *[""] * (len(texts) - 1)])
    write_table(directory / "private-tasks.csv", HEADER, rows)
    titles = ["without noise" if e == NO_NOISE else f"ε = {e}" for e in setting.levels]
    header = ["task", "algorithm", *titles]
    write_markdown(directory / "private-tasks.md", header, table)
    for row in (header, *table):
        print(" | ".join(row))
    _plot(results, names, setting, directory)


def _plot(
    results: Mapping[str, Any], names: tuple[str, ...], setting: Setting, directory: Any
) -> None:
    size = (3.6 * len(names), 3.4)
    figure, axes = plt.subplots(1, len(names), figsize=size, squeeze=False)
    levels = setting.levels[::-1]
    for axis, name in zip(axes[0], names, strict=True):
        for offset, method in enumerate(setting.methods):
            cells = [results[f"{name}.{method}.{level}"] for level in levels]
            values = np.asarray([cell["metrics"] for cell in cells], float)
            places = np.arange(len(levels)) + 0.08 * (offset - 1.5)
            axis.errorbar(
                places,
                values.mean(1),
                half_width(values.T),
                marker="o",
                markersize=3,
                capsize=2,
                linewidth=1,
                label=method,
            )
        public = results[f"{name}.public"]["metric"]
        axis.axhline(public, color="grey", linestyle=":", label="public alone")
        axis.set_xticks(range(len(levels)), levels)
        axis.set(title=name, xlabel="ε", ylabel=METRICS[name].replace("_", " "))
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, directory / "private-tasks.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="small, as in CI")
    parser.add_argument("--only", choices=list(FULL.devices), help="a single task")
    parser.add_argument(
        "--published", action="store_true", help="compute nothing; only write tables"
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="keep all published cells, whatever the code that computed them",
    )
    options = parser.parse_args()
    # A flag that halves the compile time and does not change the run time.
    os.environ["XLA_FLAGS"] = "--xla_llvm_disable_expensive_passes=true"
    jax.devices()  # reads the flags
    setting = FAST if options.fast else FULL
    names = tuple(setting.devices)
    published = None if options.fast else PUBLISHED
    if not options.published:
        some = (options.only,) if options.only else names
        parameters = setting, jax.__version__
        call = partial(experiment.run_cells, "private-tasks", parameters)
        known: dict[str, Any] = {}
        if options.missing and published is not None and published.exists():
            known = experiment.published_cells(published)

        def compute(cells: dict[str, Callable[[], Any]]) -> dict[str, Any]:
            wanted = {key: cell for key, cell in cells.items() if key not in known}
            return {**known, **call(wanted, published)}

        found = compute(cells_of(some, setting))
        results = {**found, **compute(runs_of(some, setting, found))}
    if published is not None:
        results = experiment.published_cells(published)
    report(results, names, setting, experiment.results_directory(setting.fast))


if __name__ == "__main__":
    main()
