"""Consent to execute the problem file of a run directory."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedbilevel.experiments.consent import (
    allow_problem,
    is_known_problem,
    remember_problem,
)
from fedbilevel.experiments.files.read import check_problem_file, read_experiment
from fedbilevel.experiments.run_directory.runs import read_run_experiment
from fedbilevel.experiments.schema import CustomProblem, Experiment


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option --trust, by which scripts consent."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="execute the problem file of the run directory without a question",
    )


def read_with_consent(path: Path, trust: bool) -> Experiment:
    """Return the experiment of a run directory or of an experiment file.

    The user who gives an experiment file consents to its problem file.

    Args:
        path: run directory or experiment file.
        trust: whether the user has consented on the command line.
    """
    if path.is_dir():
        experiment = read_run_experiment(path)
        consent(experiment, path, trust)
    else:
        experiment = read_experiment(path)
        check_problem_file(path, experiment, experiment)
        remember_problem(experiment)
    return experiment


def consent(experiment: Experiment, directory: Path, trust: bool) -> None:
    """Ask the user before the problem file of a run directory is executed first.

    The sender of a run directory chooses the file that it names. A file that this user
    has run from an experiment file, or has allowed before, is executed without a
    question as long as it is unchanged.

    Args:
        experiment: settings of the run.
        directory: run directory.
        trust: whether the user has consented on the command line.

    Raises:
        ValueError: if the user does not consent, or there is no terminal.

    Example:
        >>> from fedbilevel import FedBiO
        >>> consent(Experiment(FedBiO(0.1)), Path("runs/first"), trust=False)
    """
    if not trust and not is_known_problem(experiment):
        assert isinstance(experiment.problem, CustomProblem), (
            "only custom problems can be unknown"
        )
        file = experiment.problem.file
        message = (
            f"The run in {directory} names the problem file {file}, a Python program "
            "that you have neither run nor allowed in its current version."
        )
        if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            raise ValueError(f"{message} Read it, and add --trust to execute it.")
        print(f"{message} Execute it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ValueError(
                f"{file} was not executed. Read it, then answer y or add --trust."
            )
    allow_problem(experiment)


def _is_terminal(stream: Any) -> bool:
    # The stream is None if the shell has closed it.
    return stream is not None and not stream.closed and stream.isatty()
