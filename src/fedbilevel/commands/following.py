"""A run watched to its end, or to the first Ctrl-C."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedbilevel.commands.progress import progress
from fedbilevel.experiments.choices import Experiment
from fedbilevel.experiments.running import carry_out
from fedbilevel.tracking.records import Record, read_records
from fedbilevel.tracking.titles import title_of

INTERRUPTED = 130
"""The exit code that shells give to Ctrl-C."""


def follow(
    experiment: Experiment, folder: Path, as_json: bool = False, quiet: bool = False
) -> int:
    """Run or go on, showing progress; return the exit code.

    Args:
        experiment: what is asked for.
        folder: of the run.
        as_json: whether to print records as JSON instead.
        quiet: whether to print nothing at all.

    Example:
        >>> follow.__name__
        'follow'
    """
    if not (as_json or quiet):
        print(_headline(experiment, folder), file=sys.stderr)
    steps = carry_out(experiment, folder)
    shown = progress(experiment.rounds, quiet=as_json or quiet)
    with interruption() as interrupted, shown as show:
        for step in steps:
            if as_json and step.record is not None:
                print(step.record.line, flush=True)
            show(step)
            if interrupted():
                steps.close()
                break
    done = step.done.number + 1
    if done < experiment.rounds:
        print(
            f"stopped after {done} of {experiment.rounds} rounds; go on with: "
            f"fedbilevel resume {folder}",
            file=sys.stderr,
        )
        return INTERRUPTED
    return 0


def sum_up(folder: Path) -> None:
    """Say what a run has come to, and how to look at it.

    Example:
        >>> sum_up.__name__
        'sum_up'
    """
    print(_summary(list(read_records(folder))))
    print(f"all of it is in {folder}; look at it with: fedbilevel plot {folder}")


def _headline(experiment: Experiment, folder: Path) -> str:
    kinds = (type(one).__name__ for one in (experiment.problem, experiment.algorithm))
    return f"{' by '.join(kinds)}, in {folder}"


def _summary(records: Sequence[Record]) -> str:
    first, last = records[0].figures, records[-1].figures
    changes = (
        f"{title_of(name)} {first.get(name, float('nan')):.4g} → {value:.4g}"
        for name, value in last.items()
    )
    return f"after {records[-1].rounds} rounds: {', '.join(changes)}"


@contextmanager
def interruption() -> Iterator["Interrupted"]:
    """Take note of the first Ctrl-C; let the second one end the program.

    Example:
        >>> with interruption() as interrupted:
        ...     interrupted()
        False
    """
    interrupted = Interrupted()
    before = signal.signal(signal.SIGINT, interrupted.note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupted:
    """Whether Ctrl-C was pressed.

    Example:
        >>> Interrupted()()
        False
    """

    def __init__(self) -> None:
        self._noted = False

    def __call__(self) -> bool:
        """Return whether it was."""
        return self._noted

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember it, and say what happens."""
        self._noted = True
        print("\nstopping after this round; once more to stop now", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
