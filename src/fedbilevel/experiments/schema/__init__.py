"""The schema of experiment files: one dataclass for each table."""

from fedbilevel.experiments.schema.auto import Auto
from fedbilevel.experiments.schema.data import Data, Partition
from fedbilevel.experiments.schema.engines import EngineChoice, Sharded
from fedbilevel.experiments.schema.experiment import AlgorithmChoice, Experiment
from fedbilevel.experiments.schema.federation import FederationSettings
from fedbilevel.experiments.schema.outputs import (
    CheckpointSettings,
    Evaluation,
    Tracking,
)
from fedbilevel.experiments.schema.problems import CustomProblem, ProblemChoice
from fedbilevel.experiments.schema.transforms import TransformSettings

__all__ = [
    "AlgorithmChoice",
    "Auto",
    "CheckpointSettings",
    "CustomProblem",
    "Data",
    "EngineChoice",
    "Evaluation",
    "Experiment",
    "FederationSettings",
    "Partition",
    "ProblemChoice",
    "Sharded",
    "Tracking",
    "TransformSettings",
]
