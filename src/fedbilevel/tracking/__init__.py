"""Records of a run, and trackers that receive them.

The library of a tracker is imported only when that tracker begins.
"""

from fedbilevel.tracking.delivery import track
from fedbilevel.tracking.mlflow import MLflow
from fedbilevel.tracking.protocol import RunStatus, Tracker
from fedbilevel.tracking.records import Journal, Record, read_records
from fedbilevel.tracking.tensorboard import TensorBoard
from fedbilevel.tracking.wandb import WeightsAndBiases

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
