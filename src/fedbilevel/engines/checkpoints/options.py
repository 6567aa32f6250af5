"""What a run keeps of itself, and how often."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import RunState


class CheckpointError(ValueError):
    """A checkpoint that must not be used, or one that is missing.

    Example:
        >>> str(CheckpointError("the run was made with another seed"))
        'the run was made with another seed'
    """


@dataclass(frozen=True)
class Checkpoints:
    """Where, how often and how long a run keeps what it needs to go on.

    Attributes:
        directory: of this run alone.
        every: rounds between two checkpoints; the last round always has one, and so
            has the round after which a run is left: a loop that ends by `break`, or a
            closed iterator. Where Python ends with the iterator still open, the rounds
            since the last checkpoint are lost.
        keep: how many of the newest are kept.
        measure: called on each round that is kept; its numbers are kept with it and
            come back as `Round.history`.
        best: of these numbers, the one whose smallest value is kept besides; of an
            accuracy, measure its negative.

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
                f"Checkpoints needs a directory, but got {self.directory!r}."
            )
        for name in ("every", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"Checkpoints needs {name} to be a whole number, at least 1, but "
                    f"it is {value!r}."
                )
        if self.measure is not None and not callable(self.measure):
            raise TypeError(
                f"Checkpoints needs a function for measure, but got {self.measure!r}."
            )
        if self.best is not None and self.measure is None:
            raise ValueError(
                f"Checkpoints cannot keep the best {self.best!r} without measure; give "
                "a function of a round that returns it."
            )

    def numbers_of(self, done: Any) -> list[dict[str, float | int]]:
        """Return what is to be remembered of a round."""
        if self.measure is None:
            return []
        given = self.measure(done)
        try:
            found = {str(name): float(one) for name, one in given.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(
                f"Checkpoints.measure returned {given!r}; return a dictionary of "
                "numbers by name."
            ) from error
        if "round" in found:
            raise ValueError(
                "Checkpoints.measure returned a number named 'round', which is the "
                "round's own; give it another name."
            )
        if self.best is not None and self.best not in found:
            raise ValueError(
                f"Checkpoints(best={self.best!r}) has no such measure among "
                f"{', '.join(found)}; name one of them."
            )
        return [{"round": done.number, **found}]


class Progress(NamedTuple):
    """How far a run has come.

    Attributes:
        rounds: how many are done.
        state: after the last of them.
        costs: all that has been spent.
        history: what was measured.
        exclusions: the notes of the run's `ExclusionCounts`; none if nothing was
            counted.

    Example:
        >>> Progress(0, RunState(1.0, ()), Costs(), ()).rounds
        0
    """

    rounds: int
    state: RunState
    costs: Costs
    history: tuple[Mapping[str, float | int], ...]
    exclusions: Mapping[str, Any] | None = None
