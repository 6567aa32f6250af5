from .delivery import track
from .mlflow import MLflow
from .protocol import RunStatus, Tracker
from .records import Journal, Record, read_records
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases

__all__ = [
    "Journal",
    "MLflow",
    "Record",
    "RunStatus",
    "TensorBoard",
    "Tracker",
    "WeightsAndBiases",
    "read_records",
    "track",
]
