"""Settings of the evaluation, the checkpoints and the tracking of a run."""

from dataclasses import dataclass

from fedbilevel.mathematics.settings import Count, check_ranges


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run and their frequency.

    Attributes:
        every: number of rounds between two evaluations; the last round is always
            evaluated.
        stationarity: whether to solve for y*(x) at each evaluation and measure the
            hypergradient norm and the distance of y from y*(x), which is slow.
        baseline: whether to train again with x fixed at its start after the run, as a
            baseline with the same rounds and samples. `fedbilevel federate` never
            trains a baseline, because each round costs exchanges.
    """

    every: Count = 1
    stationarity: bool = False
    baseline: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints in the run directory.

    Attributes:
        every: number of rounds between two checkpoints.
        keep: number of newest checkpoints to keep.
    """

    every: Count = 10
    keep: Count = 3

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Tracking:
    """Trackers of metrics, besides `metrics.jsonl` in the run directory.

    Attributes:
        tensorboard: whether to write TensorBoard files to the run directory.
        mlflow: address of an MLflow tracking server, such as http://127.0.0.1:5000;
            None without MLflow.
        wandb: name of a Weights & Biases project; None without Weights & Biases.
    """

    tensorboard: bool = False
    mlflow: str | None = None
    wandb: str | None = None
