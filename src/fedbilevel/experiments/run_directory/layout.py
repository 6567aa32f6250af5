"""What a run's directory holds."""

from pathlib import Path

EXPERIMENT = "experiment.toml"
PROBLEM = "problem.py"
"""Of a custom problem: its file as it was when the run began or was last resumed."""
CHECKPOINTS = "checkpoints"
SOLUTION = "solution.npz"
FAILURE = "failure.json"
"""Of a failed run: the reason, and after how many rounds it was last measured."""
CAUSE = "cause.txt"
"""Of a run that ended badly: which step was too large."""
BASELINE = "baseline.json"
"""The record of the same training with x fixed at its start."""
RUN = "run"
"""Of a run across sites: the name under which server and sites know it."""
EXCHANGES = "exchanges.jsonl"
"""Of a run across sites: who took part in each exchange, and who did not and why."""


def has_checkpoints(directory: Path) -> bool:
    """Whether a run can be resumed from a directory.

    Example:
        >>> has_checkpoints(Path("nowhere"))
        False
    """
    return any((directory / CHECKPOINTS).glob("round_*"))
