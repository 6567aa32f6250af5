"""A run watched to its end, or to the first Ctrl-C."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedbilevel.commands.baseline import follow_baseline
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.experiments.baseline import lacks_baseline, read_baseline
from fedbilevel.experiments.outcome import BAD, Outcome, outcome_of, read_cause
from fedbilevel.experiments.run import Work, prepare_run, run_experiment
from fedbilevel.experiments.schema import Experiment
from fedbilevel.tracking.records import Record, read_records
from fedbilevel.tracking.titles import title_of

NOBODY_READS = 141
"""The exit code that shells give to a program whose output is no longer read."""


class RunEnding(NamedTuple):
    """How a run ended.

    Attributes:
        is_finished: whether all rounds are done.
        code: the exit code of a signal that came, perhaps when the run was finished and
            its baseline was not; 0 without one.

    Example:
        >>> RunEnding(is_finished=True, code=0).code
        0
    """

    is_finished: bool
    code: int


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
        experiment: what is asked for.
        directory: of the run.
        resume: whether a run that was begun in it is to go on.
        as_json: whether to print records as JSON instead.
        quiet: whether to print nothing at all.

    Example:
        >>> follow.__name__
        'follow'
    """
    silent = as_json or quiet
    code = 0
    works: list[Work] = []

    def prepare(experiment: Experiment) -> Work:
        works.append(prepare_run(experiment))
        return works[0]

    with (
        closing(run_experiment(experiment, directory, resume, prepare)) as steps,
        interruption() as interrupted,
        progress(headline(experiment, directory), experiment.rounds, silent) as show,
    ):
        for step in steps:
            show(step.done.number + 1, step.done.costs, step.record)
            if as_json and step.record is not None:
                try:
                    print(step.record.line, flush=True)
                except BrokenPipeError:
                    code = NOBODY_READS
            code = code or interrupted()
            if code:
                break
    done = step.done.number + 1
    if done < experiment.rounds:
        print(
            f"stopped after {done} of {experiment.rounds} rounds; go on with: "
            f"fedbilevel resume {quote(str(directory))}",
            file=sys.stderr,
        )
        return RunEnding(False, code)
    if not code and lacks_baseline(experiment, directory):
        (work,) = works
        code = follow_baseline(
            experiment, work, directory, as_json=as_json, quiet=quiet
        )
    return RunEnding(True, code)


def conclude(
    directory: Path, *, as_json: bool, devices: Sequence[str] | None = None
) -> int:
    """Print what a finished run has come to; return the exit code.

    Args:
        directory: of the run.
        as_json: whether to print JSON, and only where the outcome is bad.
        devices: their names, by number; numbers by default.

    Example:
        >>> conclude.__name__
        'conclude'
    """
    records = list(read_records(directory))
    outcome = outcome_of(records, devices, read_cause(directory))
    if not as_json:
        _sum_up(directory, records, outcome)
    elif not outcome.is_good:
        print(outcome.line, flush=True)
    return 0 if outcome.is_good else BAD


def _sum_up(directory: Path, records: Sequence[Record], outcome: Outcome) -> None:
    print(_summary(records, read_baseline(directory)))
    for reason in outcome.reasons:
        print(reason)
    print(
        f"all of it is in {directory}; look at it with: fedbilevel plot "
        f"{quote(str(directory))}"
    )


def headline(experiment: Experiment, directory: Path) -> str:
    """Return what a run is about.

    Example:
        >>> from fedbilevel import FedBiO
        >>> headline(Experiment(FedBiO(0.1)), Path("runs/first"))
        'Regularisation by FedBiO, in runs/first'
    """
    return f"{experiment.title}, in {directory}"


def _summary(records: Sequence[Record], baseline: Record | None) -> str:
    first, last = records[0].figures, records[-1].figures
    untuned = baseline.figures if baseline is not None else {}
    changes = (
        f"{title_of(name)} {first.get(name, float('nan')):.4g} → {value:.4g}"
        + (f" (without tuning {untuned[name]:.4g})" if name in untuned else "")
        for name, value in last.items()
    )
    return f"after {records[-1].rounds} rounds: {', '.join(changes)}"
