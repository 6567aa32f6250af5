"""`fedbilevel tune FILE`: the settings of an experiment searched."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote

from fedbilevel.atomic_write import replacing
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.tuning_progress import tuning_progress
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run import spec_of, work_of
from fedbilevel.experiments.run_directory.runs import placed
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.tuning import (
    BEST,
    PICTURE,
    STUDY,
    Goal,
    about_of,
    keep_result,
    keep_start,
    promise,
    score_of,
)
from fedbilevel.picture import svg_of
from fedbilevel.pictures.tuning import tuning_picture
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.halving import full_runs
from fedbilevel.tuning.tuner import SEEDS, TRIALS, Tuned, space_for, tuning

SOLVED = ("hypergradient", "lower_error")
"""Metrics for which y*(x) is solved: slow, so only where one of them decides."""


def main(arguments: Sequence[str]) -> int:
    """Search settings; the same command resumes a search that was stopped.

    Example:
        >>> main.__name__
        'main'
    """
    given, options = command_parser().parse_known_args(arguments)
    for option, number in (("--seeds", given.seeds), ("--trials", given.trials)):
        if number < 1:
            raise ValueError(f"{option}: give at least 1, not {number}.")
    written = read_experiment(given.file)
    program = f"fedbilevel tune {given.file}"
    asked_for = located(with_overrides(written, options, program), Path.cwd())
    kind = type(asked_for.algorithm)
    rival = f"-{kind.__name__}" if kind is not type(written.algorithm) else ""
    suffix = "" if asked_for.folder is not None else f"{rival}-tuned"
    experiment, folder = placed(asked_for, given.file, suffix)
    remember_problem(experiment)
    goal = Goal(given.metric, given.maximise)
    found = _search(
        experiment, folder, goal, given.trials, given.seeds, quiet=given.json
    )
    if not isinstance(found, Tuned):
        print(
            f"stopped; the same command resumes the search in {folder}",
            file=sys.stderr,
        )
        return found
    keep_result(experiment, found, goal, folder)
    with replacing(folder / PICTURE) as unfinished:
        unfinished.write_text(svg_of(tuning_picture(found, goal)), encoding="utf-8")
    print(_as_json(found, goal, folder) if given.json else _words(found, goal, folder))
    return 0


def _search(
    experiment: Experiment,
    folder: Path,
    goal: Goal,
    trials: int,
    seeds: int,
    quiet: bool,
) -> Tuned | int:
    """Return what was found, or the exit code of the signal that stopped the search."""
    solves = goal.metric in SOLVED
    evaluation = replace(experiment.evaluation, stationarity=solves)
    cost = full_runs(experiment.rounds, trials, seeds)
    headline = (
        f"settings of {experiment.title}, in {folder}: {trials} settings cost as many "
        f"rounds as {cost} full runs"
    )
    with (
        interruption("batch") as interrupted,
        tuning_progress(headline, goal, quiet) as show,
    ):
        work = work_of(replace(experiment, evaluation=evaluation))
        score = score_of(work.measure, work.x, work.y, goal)
        keep_start(experiment, folder)
        spec = spec_of(experiment, work)
        steps = tuning(
            spec,
            space_for(spec),
            trials,
            tuple(range(experiment.seed, experiment.seed + seeds)),
            experiment.seed,
            score,
            folder / STUDY,
            about=about_of(experiment, goal),
        )
        with closing(steps):
            for step in steps:
                if isinstance(step, Tuned):
                    return step
                show(step)
                if interrupted():
                    break
    return interrupted()


def _words(found: Tuned, goal: Goal, folder: Path) -> str:
    start, best = found.start, found.best
    before = goal.score(start.score)
    values = (f"  {name} = {value:.4g}" for name, value in best.settings.items())
    diverged = sum(one.score == float("inf") for one in found.trials)
    lines = [
        f"{promise(found, goal)}; with the file's own settings the median is "
        f"{before:.4g}"
        if best is not start
        else f"no setting is better than that of the file: {promise(found, goal)}",
        *values,
        f"of {len(found.trials)} settings {diverged} diverged",
        f"run the best with: fedbilevel run {quote(str(folder / BEST))}",
        "(--evaluation.stationarity also says how far its y is from y*(x): a search "
        "finds what a run ends with, which more training of y may change)",
        f"what mattered for the {title_of(goal.metric)}: {folder / PICTURE}",
    ]
    return "\n".join(lines)


def _as_json(found: Tuned, goal: Goal, folder: Path) -> str:
    def values(scores: Sequence[float]) -> list[float | None]:
        # JSON has no number for what is not finite.
        return [None if one == float("inf") else goal.score(one) for one in scores]

    best, start = found.best, found.start
    return json.dumps(
        {
            "best": str(folder / BEST),
            "picture": str(folder / PICTURE),
            "metric": goal.metric,
            "settings": dict(best.settings),
            "median": goal.score(best.score),
            "values": values(best.scores[best.rounds]),
            "before": values([start.score])[0],
            "seeds": found.seeds,
            "trials": len(found.trials),
            "importances": found.importances,
        }
    )


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel tune'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel tune",
        description="Search the rates of an experiment's algorithm by successive "
        "halving: many settings for a few rounds, the best of them for all. The best "
        "is written as an experiment file. The same command resumes a search that was "
        "stopped or killed.",
        epilog="Every option of fedbilevel run FILE --help changes the experiment.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="an experiment file")
    parser.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        help=f"settings to try; {TRIALS}. They cost as many rounds as about "
        f"{full_runs(40, TRIALS, len(SEEDS))} full runs of 40 rounds or more, or "
        f"{full_runs(10, TRIALS, len(SEEDS))} of 10",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=len(SEEDS),
        help=f"runs of each of the best settings, whose median decides; {len(SEEDS)}",
    )
    parser.add_argument(
        "--metric",
        default=Goal().metric,
        help="what to minimise: loss (the upper loss, by default) or another metric of "
        "the experiment",
    )
    parser.add_argument(
        "--maximise", action="store_true", help="maximise the metric instead"
    )
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser
