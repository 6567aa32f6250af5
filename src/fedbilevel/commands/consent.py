"""Consent to execute the problem's file that a run directory names."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedbilevel.experiments.consent import allow_problem, is_known_problem
from fedbilevel.experiments.schema import CustomProblem, Experiment


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option by which scripts consent.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_trust(parser)
        >>> parser.parse_args(["--trust"]).trust
        True
    """
    parser.add_argument(
        "--trust",
        action="store_true",
        help="execute the problem's file that DIRECTORY names without asking",
    )


def consent(experiment: Experiment, directory: Path, trust: bool) -> None:
    """Ask before the problem's file of a run directory is executed the first time.

    Whoever sends a run directory chooses which file it names. A file that this user has
    run from an experiment file is executed without asking, and so is one that was
    allowed before, as long as nobody has changed it.

    Args:
        experiment: of the run.
        directory: of the run.
        trust: whether the user has consented on the command line.

    Raises:
        ValueError: if the user does not consent, or there is nobody to be asked.

    Example:
        >>> from fedbilevel import FedBiO
        >>> consent(Experiment(FedBiO(0.1)), Path("runs/first"), trust=False)
    """
    if not trust and not is_known_problem(experiment):
        assert isinstance(experiment.problem, CustomProblem), "others are always known"
        file = experiment.problem.file
        words = (
            f"the run in {directory} names the problem file {file}, which would be "
            "executed, and which you have neither run nor allowed as it is"
        )
        if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            raise ValueError(f"{words}; read it, and add --trust to execute it.")
        print(f"{words}. Execute it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ValueError(f"{file} was not executed; read it, and say y or --trust.")
    allow_problem(experiment)


def _is_terminal(stream: Any) -> bool:
    # There is none where the shell has closed it.
    return stream is not None and not stream.closed and stream.isatty()
