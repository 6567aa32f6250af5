"""Options of checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import RunState


class CheckpointError(ValueError):
    """A checkpoint cannot be written, is missing, or belongs to another run."""


@dataclass(frozen=True)
class Checkpoints:
    """Directory and schedule of the checkpoints of a run.

    Attributes:
        directory: directory of this run alone.
        every: number of rounds between two checkpoints. The last round always has a
            checkpoint, and so has the last round before a `break` or before the
            iterator is closed. If Python exits with the iterator still open, the rounds
            since the last checkpoint are lost.
        keep: number of newest checkpoints to keep.
        measure: function of a round that returns metrics by name. It is called at each
            checkpoint, and `Round.history` has its results.
        best: name of a metric. The checkpoint with its smallest value is kept as well;
            for an accuracy, let `measure` return the negative.

    Example:
        >>> Checkpoints("runs/first", every=50).keep
        3
    """

    directory: str | Path
    every: int = 10
    keep: int = 3
    measure: Callable[[Any], Mapping[str, float]] | None = None
    best: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | Path) or not str(self.directory):
            raise TypeError(
                f"directory of Checkpoints is {self.directory!r}. Pass a path."
            )
        for name in ("every", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name} of Checkpoints is {value!r}. Pass a whole number, at "
                    "least 1."
                )
        if self.measure is not None and not callable(self.measure):
            raise TypeError(
                f"measure of Checkpoints is {self.measure!r}. Pass a function of a "
                "round."
            )
        if self.best is not None and self.measure is None:
            raise ValueError(
                f"best of Checkpoints is {self.best!r}, but measure is missing. Pass "
                "measure, a function of a round that returns this metric."
            )

    def metrics_of(self, result: Any) -> list[dict[str, float | int]]:
        """Return the metrics of a round, with its number."""
        if self.measure is None:
            return []
        returned = self.measure(result)
        try:
            metrics = {str(name): float(value) for name, value in returned.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(
                f"measure of Checkpoints returned {returned!r}. Return a dictionary of "
                "numbers by name."
            ) from error
        if "round" in metrics:
            raise ValueError(
                "measure of Checkpoints returned a metric named 'round', which is the "
                "round number. Rename the metric."
            )
        if self.best is not None and self.best not in metrics:
            raise ValueError(
                f"best of Checkpoints is {self.best!r}, but measure returned only "
                f"{', '.join(metrics)}. Pass one of these names."
            )
        return [{"round": result.number, **metrics}]


class Progress(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        rounds: number of finished rounds.
        state: state after the last of them.
        costs: costs since the start of the run.
        history: metrics of each checkpoint so far.
        exclusions: the notes of the run's `ExclusionCounts`; None if nothing was
            counted.
        secret_digest: digest of the secret of the run's noise; None without noise.
    """

    rounds: int
    state: RunState
    costs: Costs
    history: tuple[Mapping[str, float | int], ...]
    exclusions: Mapping[str, Any] | None = None
    secret_digest: str | None = None
