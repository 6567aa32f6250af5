"""A run watched to its end, or to the first Ctrl-C."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedbilevel.commands.progress import progress
from fedbilevel.experiments.choices import Experiment
from fedbilevel.experiments.running import carry_out

INTERRUPTED = 130
"""The exit code that shells give to Ctrl-C."""


def follow(experiment: Experiment, folder: Path, as_json: bool) -> int:
    """Run or go on, showing progress; return the exit code.

    Example:
        >>> follow.__name__
        'follow'
    """
    steps = carry_out(experiment, folder)
    with interruption() as interrupted, progress(experiment.rounds, as_json) as show:
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
    if not as_json:
        print(f"all of it is in {folder}")
    return 0


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
