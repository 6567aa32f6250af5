from .auto import Auto
from .data import Data, Partition
from .engines import EngineChoice, Sharded
from .experiment import AlgorithmChoice, Experiment
from .federation import FederationSettings
from .outputs import (
    CheckpointSettings,
    Evaluation,
    Tracking,
)
from .problems import CustomProblem, ProblemChoice
from .transforms import TransformSettings

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
