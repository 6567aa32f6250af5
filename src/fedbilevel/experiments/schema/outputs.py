"""Settings of the evaluation, the checkpoints and the tracking of a run."""

from dataclasses import dataclass

from fedbilevel.mathematics.settings import Count, check_ranges
from fedbilevel.metrics.registry import find_metric


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run and their frequency.

    Attributes:
        every: number of rounds between two evaluations; the last round is always
            evaluated.
        metrics: names of metrics to measure besides the losses and the task's, such as
            hypergradient, ‖∇Φ(x)‖², and lower_error, ‖y − y*(x)‖². Both are slow, since
            they solve for y*(x). `fedbilevel federate` measures none: its server has no
            examples.
        baseline: whether to train again with x fixed at its start after the run, as a
            baseline with the same rounds and samples. `fedbilevel federate` never
            trains a baseline, because each round costs exchanges.
    """

    every: Count = 1
    metrics: tuple[str, ...] = ()
    baseline: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in self.metrics:
            # An import path is resolved by the run: a file is also read to show it.
            if ":" not in name:
                find_metric(name)


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
