"""The untuned baseline of a finished run, trained with live progress."""

import json
import sys
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote

from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.engines.screening import NoUploadsError
from fedbilevel.experiments.baseline import train_baseline
from fedbilevel.experiments.run import PreparedRun
from fedbilevel.experiments.schema import Experiment


def follow_baseline(
    experiment: Experiment,
    work: PreparedRun,
    directory: Path,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Train the baseline of a finished run; return the exit code of a signal, or 0.

    The run's own results are on disk already: Ctrl-C, or a baseline that diverges,
    takes nothing from them, and is reported on standard error.

    Args:
        experiment: that was run.
        work: of the run.
        directory: of the run.
        as_json: whether to print the baseline's record as JSON instead.
        quiet: whether to print nothing at all.

    Example:
        >>> follow_baseline.__name__
        'follow_baseline'
    """
    rounds = experiment.rounds
    with (
        closing(train_baseline(experiment, work, directory)) as steps,
        interruption() as interrupted,
        progress(
            "the same without tuning, to compare with: x stays at its start",
            rounds,
            as_json or quiet,
        ) as show,
    ):
        try:
            for step in steps:
                show(step.round.number + 1, step.round.costs, step.record)
                if interrupted():
                    break
        except NoUploadsError as error:
            print(
                f"the run is finished, but not its baseline without tuning: {error}",
                file=sys.stderr,
            )
            return 0
    if step.record is None:
        print(
            f"the run is finished; its baseline without tuning was stopped after "
            f"{step.round.number + 1} of {rounds} rounds. Train it with: "
            f"fedbilevel resume {quote(str(directory))}",
            file=sys.stderr,
        )
    elif as_json:
        # Nobody may be reading any more; the file has it too.
        with suppress(BrokenPipeError):
            print(json.dumps({"baseline": json.loads(step.record.line)}), flush=True)
    return interrupted()
