"""Train the untuned baseline of a finished run, with progress."""

import json
import sys
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote

from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.engines.inspection import NoUploadsError
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

    The results of the run are already on disk: Ctrl-C or a diverging baseline is
    reported on standard error and does not affect them.

    Args:
        experiment: settings of the run.
        work: prepared computation of the run.
        directory: run directory.
        as_json: whether to print the baseline's record as JSON instead of progress.
        quiet: whether to print nothing.
    """
    rounds = experiment.rounds
    with (
        closing(train_baseline(experiment, work, directory)) as steps,
        interruption() as interrupted,
        progress(
            "Baseline without tuning: the same training with x fixed at its start",
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
                f"The run is finished, but its baseline without tuning failed: {error}",
                file=sys.stderr,
            )
            return 0
    if step.record is None:
        print(
            f"The run is finished; its baseline without tuning was stopped after "
            f"{step.round.number + 1} of {rounds} rounds. To finish it: "
            f"fedbilevel resume {quote(str(directory))}",
            file=sys.stderr,
        )
    elif as_json:
        # The reader may have closed the pipe; the record is also in a file.
        with suppress(BrokenPipeError):
            print(json.dumps({"baseline": json.loads(step.record.line)}), flush=True)
    return interrupted()
