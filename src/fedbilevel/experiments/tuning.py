"""The search for settings of an experiment file: its score and its files."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fedbilevel.algorithms.server_optimiser import WithServerOptimiser
from fedbilevel.algorithms.wrapper import find_layer, innermost
from fedbilevel.atomic_write import atomic_replace, atomic_write
from fedbilevel.engines.costs import Costs
from fedbilevel.experiments.differences import differences, format_differences
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import text_of
from fedbilevel.experiments.measure import measure_start
from fedbilevel.experiments.run_directory.failures import divergence
from fedbilevel.experiments.run_directory.layout import BEST
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.losses import LOSS
from fedbilevel.metrics.registry import ALWAYS, find_metric, list_metrics, title_of
from fedbilevel.nearest import nearest
from fedbilevel.plurals import count_noun
from fedbilevel.tracking.records import Record
from fedbilevel.tuning.scoring import Score
from fedbilevel.tuning.tuner import TuningResult

STUDY = "study.log"
"""Optuna's journal of all proposals and scores."""
START = "start.toml"
"""The experiment whose settings are searched."""
TRIALS = "trials.csv"
"""A table with a row for each trial."""
PICTURE = "tuning.svg"
"""The score against each setting."""


class Goal(NamedTuple):
    """The metric that a search improves.

    Attributes:
        metric: name of a metric in the records of a run; "loss" is the upper loss.
        maximise: whether larger values are better.

    Example:
        >>> Goal().metric, Goal("accuracy", maximise=True).score(0.9)
        ('loss', -0.9)
    """

    metric: str = LOSS.name
    maximise: bool = False

    def score(self, value: float) -> float:
        """Return the score to minimise for a value; or the value for a score."""
        return -value if self.maximise else value


def goal_of(
    experiment: Experiment, metric: str, maximise: bool = False
) -> tuple[Goal, tuple[str, ...]]:
    """Return the goal of a search, and the metrics that it names to measure.

    Args:
        experiment: experiment of the search.
        metric: name of a metric, or its import path `module:METRIC`.
        maximise: whether larger values are better.

    Raises:
        ValueError: if an import path is wrong.

    Example:
        >>> from fedbilevel import FedBiO
        >>> goal_of(Experiment(FedBiO(0.1)), "lower_error")
        (Goal(metric='lower_error', maximise=False), ('lower_error',))
    """
    named = {name: name for name in list_metrics().keys() - {m.name for m in ALWAYS}}
    for path in (*experiment.evaluation.metrics, metric):
        if ":" in path:
            named[find_metric(path).name] = path
    name = find_metric(metric).name if ":" in metric else metric
    # A search reads one metric, so it measures no other by name.
    return Goal(name, maximise), (named[name],) if name in named else ()


def about_of(experiment: Experiment, goal: Goal) -> dict[str, Any]:
    """Return the properties that a search and its resumption must have in common.

    They are the metric, and a digest of a custom problem's file, which defines the
    metrics. `keep_start` compares the settings.

    Example:
        >>> from fedbilevel import FedBiO
        >>> about_of(Experiment(FedBiO(0.1)), Goal())
        {'metric': 'loss', 'maximise': False}
    """
    about = goal._asdict()
    if isinstance(experiment.problem, CustomProblem):
        content = experiment.problem.file.read_bytes()
        about["problem_file"] = hashlib.sha256(content).hexdigest()[:12]
    return about


def score_of(
    measure: Callable[[Upper, Lower], Mapping[str, float]],
    x: Upper,
    y: Lower,
    goal: Goal = Goal(),
) -> Score:
    """Return the score of a point: the value that the summary of a run reports.

    The score is infinite if the search counts the run as diverged, or if `fedbilevel
    run` would report it as failed: a run of the best settings must not fail.

    Args:
        measure: function that returns the metrics of a point.
        x: upper variable at the start of runs.
        y: lower variable at the start of runs.
        goal: metric to improve.

    Raises:
        ValueError: if the metric is unknown, or a loss is not finite at the start.

    Example:
        >>> score = score_of(lambda x, y: {"loss": x, "accuracy": y}, 1.0, 0.1)
        >>> score(0.5, 0.9), score(2000.0, 0.9)
        (0.5, inf)
    """
    first = measure_start(measure, x, y) or measure(x, y)
    if goal.metric not in first:
        raise ValueError(
            f"--metric {goal.metric}: this experiment has no such metric; "
            f"{nearest(goal.metric, first)}"
        )

    def score(x: Upper, y: Lower, /) -> float:
        last = dict(measure(x, y))
        records = [
            Record(number, 0.0, Costs(), metrics)
            for number, metrics in enumerate([first, last])
        ]
        value = last[goal.metric]
        diverged = divergence(records) is not None or not isfinite(value)
        return inf if diverged else goal.score(value)

    return score


def with_algorithm(experiment: Experiment, algorithm: Any) -> Experiment:
    """Return an experiment with other settings of its algorithm.

    Args:
        experiment: experiment whose algorithm is replaced.
        algorithm: algorithm of the same class, with the same type of server optimiser.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1))
        >>> with_algorithm(experiment, FedBiO(0.3)).algorithm.learning_rate
        0.3
    """
    inner = innermost(algorithm)
    if experiment.auto is not None:
        auto = replace(experiment.auto, upper_rate=inner.upper_rate)
        return replace(experiment, algorithm=auto)
    optimised = find_layer(algorithm, WithServerOptimiser)
    optimiser = None if optimised is None else optimised.server_optimiser
    return replace(experiment, algorithm=inner, server_optimiser=optimiser)


def keep_start(experiment: Experiment, directory: Path) -> None:
    """Write the experiment of a search to its directory, or compare it on resumption.

    Raises:
        ValueError: if the directory has a search of another experiment.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> directory = Path(tempfile.mkdtemp()) / "first-tuned"
        >>> keep_start(Experiment(FedBiO(0.1)), directory)
        >>> keep_start(Experiment(FedBiO(0.1)), directory)
        >>> read_experiment(directory / START).rounds
        100
    """
    file = directory / START
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write(file, text_of(experiment))
        return
    different = differences(read_experiment(file), experiment)
    if different:
        raise ValueError(
            f"{directory} has a search of another experiment: "
            f"{format_differences(different)}. Choose another --directory, or remove "
            "this one."
        )


def keep_result(
    experiment: Experiment, result: TuningResult, goal: Goal, directory: Path
) -> Experiment:
    """Write the best settings as an experiment file, and a table of all trials.

    Returns:
        The experiment with the best settings.
    """
    best = with_algorithm(experiment, result.algorithm)
    # The run directory is beside the file, not in another directory `runs`.
    text = text_of(replace(best, directory=Path(Path(BEST).stem)))
    atomic_write(directory / BEST, f"# {promise(result, goal)}\n{text}")
    with atomic_replace(directory / TRIALS) as unfinished:
        write_trials(result, goal, unfinished)
    return best


def promise(result: TuningResult, goal: Goal) -> str:
    """Return a sentence with the metric of the best settings."""
    best = result.best
    first_seed = goal.score(best.scores[best.rounds][0])
    return (
        f"{title_of(goal.metric)} {goal.score(best.score):.4g} after "
        f"{count_noun(best.rounds, 'round')}, the median of "
        f"{count_noun(len(result.seeds), 'seed')}; {first_seed:.4g} with seed "
        f"{result.seeds[0]}"
    )


def write_trials(result: TuningResult, goal: Goal, file: Path) -> None:
    """Write a table of all trials: settings, rounds, and the metric of each seed.

    The metric of a run that diverged is empty.
    """
    names = list(result.start.settings)
    with file.open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        values = [f"{goal.metric} (seed {seed})" for seed in result.seeds]
        writer.writerow(["trial", "generation", *names, "rounds", goal.metric, *values])
        for trial in result.trials:
            scores = [trial.score, *trial.scores.get(trial.rounds, ())]
            writer.writerow(
                [
                    trial.number,
                    trial.generation,
                    *(trial.settings[name] for name in names),
                    trial.rounds,
                    *(goal.score(score) if isfinite(score) else "" for score in scores),
                ]
            )
