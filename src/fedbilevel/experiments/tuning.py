"""The settings of an experiment file searched: what is scored, and what is kept."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.engines.costs import Costs
from fedbilevel.experiments.differences import differences, in_words
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import text_of, write_experiment
from fedbilevel.experiments.measure import measured_start
from fedbilevel.experiments.run_directory.failures import LOSS, divergence
from fedbilevel.experiments.schema import Auto, CustomProblem, Experiment
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.nearest import nearest
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.scoring import Score
from fedbilevel.tuning.tuner import TuningResult

STUDY = "study.log"
"""A journal of Optuna: all proposals and scores."""
START = "start.toml"
"""The experiment whose settings are searched."""
BEST = "best.toml"
"""The same experiment with the best settings."""
TRIALS = "trials.csv"
"""A row for each setting that was tried."""
PICTURE = "tuning.svg"
"""The score against each setting."""


class Goal(NamedTuple):
    """What a search is to improve.

    Attributes:
        metric: a name that a run's records have; "loss" is the upper loss.
        maximise: whether larger values are better.

    Example:
        >>> Goal().metric, Goal("accuracy", maximise=True).score(0.9)
        ('loss', -0.9)
    """

    metric: str = LOSS
    maximise: bool = False

    def score(self, value: float) -> float:
        """Return what is minimised; or from a score, the value."""
        return -value if self.maximise else value


def about_of(experiment: Experiment, goal: Goal) -> dict[str, Any]:
    """Return what a resumed search must have in common with the one it resumes.

    Besides what `keep_start` compares: the metric, and a digest of a custom problem's
    file, which defines the metrics.

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

    It is infinite where `fedbilevel run` would report the run as failed, besides what
    every search counts as divergence: the best file must not fail when it is run.

    Args:
        measure: what is measured at a point.
        x: where runs start.
        y: where runs start.
        goal: what is to be improved.

    Raises:
        ValueError: if there is no such metric, or a loss is not finite at the start.

    Example:
        >>> score = score_of(lambda x, y: {"loss": x, "accuracy": y}, 1.0, 0.1)
        >>> score(0.5, 0.9), score(2000.0, 0.9)
        (0.5, inf)
    """
    first = measured_start(measure, x, y) or measure(x, y)
    if goal.metric not in first:
        raise ValueError(
            f"there is no metric {goal.metric!r} in this experiment; "
            f"{nearest(goal.metric, first)}"
        )

    def score(x: Upper, y: Lower, /) -> float:
        last = dict(measure(x, y))
        records = [
            Record(place, 0.0, Costs(), one) for place, one in enumerate([first, last])
        ]
        value = last[goal.metric]
        diverged = divergence(records) is not None or not isfinite(value)
        return inf if diverged else goal.score(value)

    return score


def with_algorithm(experiment: Experiment, algorithm: Any) -> Experiment:
    """Return an experiment with other settings of its algorithm.

    Args:
        experiment: whose algorithm is replaced.
        algorithm: of the same class, with the same kind of server optimiser.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1))
        >>> with_algorithm(asked, FedBiO(0.3)).algorithm.learning_rate
        0.3
    """
    if isinstance(experiment.algorithm, Auto):
        auto = replace(experiment.algorithm, upper_rate=algorithm.upper_rate)
        return replace(experiment, algorithm=auto)
    if experiment.server_optimiser is not None:
        return replace(
            experiment,
            algorithm=algorithm.algorithm,
            server_optimiser=algorithm.optimiser,
        )
    return replace(experiment, algorithm=algorithm)


def keep_start(experiment: Experiment, directory: Path) -> None:
    """Write down what is searched; refuse the directory of another search.

    Raises:
        ValueError: if the directory is that of a search of another experiment.

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
        with atomic_replace(file) as unfinished:
            write_experiment(experiment, unfinished)
        return
    different = differences(read_experiment(file), experiment)
    if different:
        raise ValueError(
            f"{directory} holds a search of another experiment: {in_words(different)}. "
            "Give this one another --directory, or remove the directory."
        )


def keep_result(
    experiment: Experiment, found: TuningResult, goal: Goal, directory: Path
) -> Experiment:
    """Write the best settings as an experiment file, and a table of all trials.

    Returns:
        The experiment with the best settings.

    Example:
        >>> keep_result.__name__
        'keep_result'
    """
    best = with_algorithm(experiment, found.algorithm)
    # Its run goes beside it, and not into a directory `runs` of this directory.
    text = text_of(replace(best, directory=Path(Path(BEST).stem)))
    with atomic_replace(directory / BEST) as unfinished:
        unfinished.write_text(f"# {promise(found, goal)}\n{text}", encoding="utf-8")
    with atomic_replace(directory / TRIALS) as unfinished:
        write_trials(found, goal, unfinished)
    return best


def promise(found: TuningResult, goal: Goal) -> str:
    """Return what the best settings came to.

    Example:
        >>> promise.__name__
        'promise'
    """
    best = found.best
    own = goal.score(best.scores[best.rounds][0])
    return (
        f"{title_of(goal.metric)} {goal.score(best.score):.4g} after {best.rounds} "
        f"rounds, the median of {len(found.seeds)} seeds; {own:.4g} with seed "
        f"{found.seeds[0]}"
    )


def write_trials(found: TuningResult, goal: Goal, file: Path) -> None:
    """Write a table of all trials: settings, rounds, and values of each seed.

    A value is empty where a run diverged.

    Example:
        >>> write_trials.__name__
        'write_trials'
    """
    names = list(found.start.settings)
    with file.open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        values = [f"{goal.metric} (seed {seed})" for seed in found.seeds]
        writer.writerow(["trial", "generation", *names, "rounds", goal.metric, *values])
        for trial in found.trials:
            scores = [trial.score, *trial.scores.get(trial.rounds, ())]
            writer.writerow(
                [
                    trial.number,
                    trial.generation,
                    *(trial.settings[name] for name in names),
                    trial.rounds,
                    *(goal.score(one) if isfinite(one) else "" for one in scores),
                ]
            )
