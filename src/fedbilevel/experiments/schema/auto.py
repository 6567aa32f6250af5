"""The algorithm of a file that asks for none: "auto"."""

from dataclasses import dataclass

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.mathematics.settings import UpperRate


@dataclass(frozen=True)
class Auto:
    """FedBiO that finds its own rates, as long as the run is.

    In a file it is `algorithm = "auto"`, or a table with `name = "auto"` where a
    setting is to be another.

    Attributes:
        upper_rate: about how far a coordinate of x moves in a round.
        local_steps: steps between two exchanges.
        batch_size: examples in each of the four batches of a step.
        rounds: after which x rests; by default those of the experiment.

    Example:
        >>> Auto().over(300).rounds
        300
    """

    upper_rate: UpperRate = 0.03
    local_steps: int = 5
    batch_size: int = 16
    rounds: int | None = None

    def __post_init__(self) -> None:
        self.over(2)  # refuses what is impossible

    def over(self, rounds: int) -> AutoFedBiO:
        """Return the algorithm of a run of so many rounds.

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
