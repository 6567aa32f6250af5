"""What an experiment file can ask for: one dataclass a table of the file."""

from fedbilevel.experiments.choices.auto import Auto
from fedbilevel.experiments.choices.data import Data, Partition
from fedbilevel.experiments.choices.engines import EngineChoice, Sharded
from fedbilevel.experiments.choices.experiment import KINDS, AlgorithmChoice, Experiment
from fedbilevel.experiments.choices.federation import Federated
from fedbilevel.experiments.choices.keeping import Evaluation, Keeping, Tracking
from fedbilevel.experiments.choices.problems import (
    Cleaning,
    LossTuning,
    Own,
    ProblemChoice,
    Regularisation,
    Representation,
)

__all__ = [
    "KINDS",
    "AlgorithmChoice",
    "Auto",
    "Cleaning",
    "Data",
    "EngineChoice",
    "Evaluation",
    "Experiment",
    "Federated",
    "Keeping",
    "LossTuning",
    "Own",
    "Partition",
    "ProblemChoice",
    "Regularisation",
    "Representation",
    "Sharded",
    "Tracking",
]
