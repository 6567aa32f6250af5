"""Settings of the algorithm "auto", which chooses its own rates."""

from dataclasses import dataclass

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.mathematics.settings import UpperRate


@dataclass(frozen=True)
class Auto:
    """FedBiO with rates chosen automatically for the number of rounds.

    In a file: `algorithm = "auto"`, or a table with `name = "auto"` and the settings
    to change.

    Attributes:
        upper_rate: approximate distance that a coordinate of x moves in a round.
        local_steps: local steps between two exchanges.
        batch_size: examples in each of the four batches of a local step.
        rounds: number of rounds after which x stops moving; None for `rounds` of the
            experiment.

    Example:
        >>> Auto().over(300).rounds
        300
    """

    upper_rate: UpperRate = 0.03
    local_steps: int = 5
    batch_size: int = 16
    rounds: int | None = None

    def __post_init__(self) -> None:
        self.over(2)  # Raises an error for settings outside their ranges.

    def over(self, rounds: int) -> AutoFedBiO:
        """Return the algorithm for a run of the given number of rounds.

        Example:
            >>> Auto(rounds=200).over(300).rounds
            200
        """
        return AutoFedBiO(
            rounds if self.rounds is None else self.rounds,
            upper_rate=self.upper_rate,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
        )
