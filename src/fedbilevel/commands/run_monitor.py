"""Run an experiment with progress, to its end or to the first Ctrl-C."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedbilevel.commands.baseline import follow_baseline
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.data.weights import given_names
from fedbilevel.experiments.baseline import lacks_baseline, read_baseline
from fedbilevel.experiments.outcome import BAD, Outcome, outcome_of, read_cause
from fedbilevel.experiments.run import PreparedRun, prepare_run, run_experiment
from fedbilevel.experiments.schema import Experiment
from fedbilevel.metrics.registry import title_of
from fedbilevel.plurals import count_noun
from fedbilevel.terminal import one_line
from fedbilevel.tracking.records import Record, read_records

BROKEN_PIPE = 141
"""Exit code of a program whose output is no longer read, as in shells."""


class RunEnding(NamedTuple):
    """The end of a run.

    Attributes:
        is_finished: whether all rounds are finished.
        code: exit code of a signal, which may arrive during the baseline of a finished
            run; 0 without a signal.
        names: names of the devices; None if they have only numbers.
    """

    is_finished: bool
    code: int
    names: Sequence[str] | None = None


def follow(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool,
    as_json: bool = False,
    quiet: bool = False,
) -> RunEnding:
    """Start or resume a run, showing progress.

    Args:
        experiment: settings of the run.
        directory: run directory.
        resume: whether to resume a run in that directory.
        as_json: whether to print records as JSON lines instead of progress.
        quiet: whether to print nothing.
    """
    silent = as_json or quiet
    code = 0
    works: list[PreparedRun] = []

    def prepare(experiment: Experiment) -> PreparedRun:
        works.append(prepare_run(experiment))
        return works[0]

    with (
        closing(run_experiment(experiment, directory, resume, prepare)) as steps,
        interruption() as interrupted,
        progress(headline(experiment, directory), experiment.rounds, silent) as show,
    ):
        for step in steps:
            show(step.round.number + 1, step.round.costs, step.record)
            if as_json and step.record is not None:
                try:
                    print(step.record.line, flush=True)
                except BrokenPipeError:
                    code = BROKEN_PIPE
            code = code or interrupted()
            if code:
                break
    finished = step.round.number + 1
    # A run with a budget of ε may have ended before.
    if finished < experiment.rounds and not step.round.is_last:
        print(
            f"Stopped after {finished} of {experiment.rounds} rounds. To resume: "
            f"fedbilevel resume {quote(str(directory))}",
            file=sys.stderr,
        )
        return RunEnding(False, code)
    if not code and lacks_baseline(experiment, directory):
        (work,) = works
        code = follow_baseline(
            experiment, work, directory, as_json=as_json, quiet=quiet
        )
    return RunEnding(True, code, given_names(works[0].devices))


def conclude(
    directory: Path, *, as_json: bool, devices: Sequence[str] | None = None
) -> int:
    """Print the results of a finished run; return the exit code.

    Args:
        directory: run directory.
        as_json: whether to print JSON, and only if the outcome is bad.
        devices: device names, by device number; numbers by default.
    """
    records = list(read_records(directory))
    outcome = outcome_of(records, devices, read_cause(directory))
    if not as_json:
        _print_summary(directory, records, outcome)
    elif not outcome.is_good:
        print(outcome.line, flush=True)
    return 0 if outcome.is_good else BAD


def _print_summary(
    directory: Path, records: Sequence[Record], outcome: Outcome
) -> None:
    print(_summary(records, read_baseline(directory)))
    for reason in outcome.reasons:
        print(reason)
    print(
        f"Results are in {directory}. To plot them: fedbilevel plot "
        f"{quote(str(directory))}"
    )


def headline(experiment: Experiment, directory: Path) -> str:
    """Return the first line of a run's progress.

    Example:
        >>> from fedbilevel import FedBiO
        >>> headline(Experiment(FedBiO(0.1)), Path("runs/first"))
        'Regularisation by FedBiO, in runs/first'
    """
    return f"{experiment.title}, in {one_line(str(directory))}"


def _summary(records: Sequence[Record], baseline: Record | None) -> str:
    first, last = records[0].metrics, records[-1].metrics
    untuned = baseline.metrics if baseline is not None else {}
    changes = (
        f"{title_of(name)} {first.get(name, float('nan')):.4g} → {value:.4g}"
        + (f" (without tuning {untuned[name]:.4g})" if name in untuned else "")
        for name, value in last.items()
    )
    return f"After {count_noun(records[-1].rounds, 'round')}: {', '.join(changes)}"
