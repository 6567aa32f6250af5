"""What is measured and kept of a run, and where else it goes."""

from dataclasses import dataclass

from fedbilevel.mathematics.settings import Count, check_ranges


@dataclass(frozen=True)
class Evaluation:
    """What is measured, and how often.

    Attributes:
        every: rounds between two measurements; the last round always has one.
        stationarity: whether to solve for y*(x) and measure the distance from it, which
            takes a while.
        baseline: whether to train once more with x fixed at its start when the run is
            finished, to compare with: as many rounds on the same samples, compiled
            already. `fedbilevel federate` never does, since each round costs exchanges.

    Example:
        >>> Evaluation().every
        1
    """

    every: Count = 1
    stationarity: bool = False
    baseline: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints of a run, in its directory.

    Attributes:
        every: rounds between two.
        keep: how many of the newest stay.

    Example:
        >>> CheckpointSettings().every
        10
    """

    every: Count = 10
    keep: Count = 3

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Tracking:
    """Where measurements go besides `metrics.jsonl` in the run's directory.

    Attributes:
        tensorboard: whether to write TensorBoard's files, into the run's directory.
        mlflow: the address of an MLflow tracking server, such as
            http://127.0.0.1:5000.
        wandb: a project of Weights & Biases.

    Example:
        >>> Tracking().tensorboard
        False
    """

    tensorboard: bool = False
    mlflow: str | None = None
    wandb: str | None = None
