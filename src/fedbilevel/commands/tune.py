"""`fedbilevel tune FILE`: tune the learning rates of an experiment."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote

from fedbilevel.atomic_write import atomic_write
from fedbilevel.commands.formatting import JSON_HELP
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.tuning_progress import tuning_progress
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import check_problem_file, read_experiment
from fedbilevel.experiments.run import prepare_run, run_of
from fedbilevel.experiments.run_directory.layout import BEST
from fedbilevel.experiments.run_directory.runs import resolve_run_directory
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.tuning import (
    PICTURE,
    STUDY,
    Goal,
    about_of,
    goal_of,
    keep_result,
    keep_start,
    promise,
    score_of,
)
from fedbilevel.metrics.registry import title_of
from fedbilevel.picture import svg_of
from fedbilevel.pictures.tuning import tuning_picture
from fedbilevel.plurals import count_noun
from fedbilevel.tuning.halving import full_runs
from fedbilevel.tuning.tuner import SEEDS, TRIALS, TuningResult, space_for, tuning
from fedbilevel.usage import with_plain_errors


def main(arguments: Sequence[str]) -> int:
    """Tune settings; the same command resumes a stopped search."""
    parser = with_plain_errors(command_parser())
    options, overrides = parser.parse_known_args(arguments)
    for option, number in (("--seeds", options.seeds), ("--trials", options.trials)):
        if number < 1:
            raise ValueError(f"{option} is {number}. Give at least 1.")
    file = options.file
    original = read_experiment(file)
    changed = with_overrides(
        original,
        overrides,
        f"fedbilevel tune {quote(str(file))}",
        command_options=parser._option_string_actions,
    )
    _refuse_noise(changed)
    changed = located(changed, Path.cwd())
    check_problem_file(file, original, changed)
    algorithm = type(changed.algorithm)
    is_rival = algorithm is not type(original.algorithm)
    suffix = f"-{algorithm.__name__}-tuned" if is_rival else "-tuned"
    if changed.directory is not None:
        suffix = ""
    experiment, directory = resolve_run_directory(changed, file, suffix)
    remember_problem(experiment)
    goal, metrics = goal_of(experiment, options.metric, options.maximise)
    result = _search(
        experiment,
        directory,
        goal,
        metrics,
        options.trials,
        options.seeds,
        quiet=options.json,
    )
    if not isinstance(result, TuningResult):
        print(
            f"Stopped. The same command resumes the search in {directory}.",
            file=sys.stderr,
        )
        return result
    keep_result(experiment, result, goal, directory)
    atomic_write(directory / PICTURE, svg_of(tuning_picture(result, goal)))
    print(
        _as_json(result, goal, directory)
        if options.json
        else _summary(result, goal, directory)
    )
    return 0


def _refuse_noise(experiment: Experiment) -> None:
    transforms = experiment.transforms
    if transforms.is_private:
        by_example = transforms.example_noise is not None
        name = "example_noise" if by_example else "noise"
        raise ValueError(
            f"transforms.{name} is {getattr(transforms, name):g}, but each trial of a "
            "search uses the data, which the ε of one run does not count. Tune on "
            "public data without noise"
            # AutoFedBiO reads losses, which have no noise by example.
            f"{'' if by_example else ', or set the algorithm to auto and run it'}."
        )


def _search(
    experiment: Experiment,
    directory: Path,
    goal: Goal,
    metrics: tuple[str, ...],
    trials: int,
    seeds: int,
    quiet: bool,
) -> TuningResult | int:
    """Return the result, or the exit code of the signal that stopped the search."""
    evaluation = replace(experiment.evaluation, metrics=metrics)
    cost = full_runs(experiment.rounds, trials, seeds)
    headline = (
        f"Tuning {experiment.title}, in {directory}: as many rounds as "
        f"{count_noun(cost, 'full run')}, for {count_noun(trials, 'setting')}"
    )
    with (
        interruption("batch") as interrupted,
        tuning_progress(headline, goal, quiet) as show,
    ):
        work = prepare_run(replace(experiment, evaluation=evaluation))
        score = score_of(work.measure, work.x, work.y, goal)
        keep_start(experiment, directory)
        run = run_of(experiment, work)
        steps = tuning(
            run,
            space_for(run),
            trials,
            tuple(range(experiment.seed, experiment.seed + seeds)),
            experiment.seed,
            score,
            directory / STUDY,
            about=about_of(experiment, goal),
        )
        with closing(steps):
            for step in steps:
                if isinstance(step, TuningResult):
                    return step
                show(step)
                if interrupted():
                    break
    return interrupted()


def _summary(result: TuningResult, goal: Goal, directory: Path) -> str:
    start, best = result.start, result.best
    values = (f"  {name} = {value:.4g}" for name, value in best.settings.items())
    diverged = sum(trial.score == float("inf") for trial in result.trials)
    lines = [
        f"Best settings: {promise(result, goal)}; with the settings of the file the "
        f"median is {goal.score(start.score):.4g}"
        if best is not start
        else f"The settings of the file are the best: {promise(result, goal)}",
        *values,
        f"{diverged} of {len(result.trials)} settings diverged",
        f"To run the best settings: fedbilevel run {quote(str(directory / BEST))}",
        "(Add --evaluation.metrics lower_error to measure the distance of y from "
        "y*(x). "
        "Tuning scores the last round, so more training of y may change the order.)",
        f"Influence of each setting on the {title_of(goal.metric)}: "
        f"{directory / PICTURE}",
    ]
    return "\n".join(lines)


def _as_json(result: TuningResult, goal: Goal, directory: Path) -> str:
    def values(scores: Sequence[float]) -> list[float | None]:
        # JSON has no infinity.
        return [None if s == float("inf") else goal.score(s) for s in scores]

    best, start = result.best, result.start
    return json.dumps(
        {
            "best": str(directory / BEST),
            "picture": str(directory / PICTURE),
            "metric": goal.metric,
            "settings": dict(best.settings),
            "median": goal.score(best.score),
            "values": values(best.scores[best.rounds]),
            "before": values([start.score])[0],
            "seeds": result.seeds,
            "trials": len(result.trials),
            "importances": result.importances,
        }
    )


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel tune",
        description="Tune the learning rates of an experiment's algorithm by "
        "successive halving: many settings for a few rounds, the best of them for all "
        "rounds. Write the best settings as an experiment file. The same command "
        "resumes a stopped or killed search.",
        epilog="All options of fedbilevel run FILE --help override FILE here, too.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="experiment file (.toml)"
    )
    parser.add_argument(
        "--trials",
        metavar="INT",
        type=int,
        default=TRIALS,
        help="number of settings to try; the default costs about "
        f"{full_runs(40, TRIALS, len(SEEDS))} full runs of 40 rounds or more, or "
        f"{full_runs(10, TRIALS, len(SEEDS))} of 10 rounds (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        metavar="INT",
        type=int,
        default=len(SEEDS),
        help="number of seeds of each of the best settings, ranked by their median "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--metric",
        metavar="METRIC",
        default=Goal().metric,
        help="metric to minimise: loss (the upper loss), another metric of the "
        "experiment, or module:METRIC (default: %(default)s)",
    )
    parser.add_argument(
        "--maximise", action="store_true", help="maximise the metric instead"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser
