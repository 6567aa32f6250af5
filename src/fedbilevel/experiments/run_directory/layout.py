"""Names of the files in a run directory."""

from pathlib import Path

EXPERIMENT = "experiment.toml"
PROBLEM = "problem.py"
"""A copy of a custom problem's file when the run was started or last resumed."""
CHECKPOINTS = "checkpoints"
SOLUTION = "solution.npz"
FAILURE = "failure.json"
"""The reason of a failed run, and the rounds of its last measurement."""
CAUSE = "cause.txt"
"""The step that was too large in a run that ended badly."""
BASELINE = "baseline.json"
"""The record of the same training with x fixed at its start."""
BEST = "best.toml"
"""The experiment file with the best settings of a search; its run is in `best`."""
RUN = "run"
"""The name of a run across sites, on server and sites."""
EXCHANGES = "exchanges.jsonl"
"""The participants and the exclusions of each exchange of a run across sites."""


def has_checkpoints(directory: Path) -> bool:
    """Return whether a run directory has checkpoints.

    Example:
        >>> has_checkpoints(Path("nowhere"))
        False
    """
    return any((directory / CHECKPOINTS).glob("round_*"))
