"""What an experiment file can ask for: one dataclass a table of the file."""

from fedbilevel.experiments.schema.auto import Auto
from fedbilevel.experiments.schema.data import Data, Partition
from fedbilevel.experiments.schema.engines import EngineChoice, Sharded
from fedbilevel.experiments.schema.experiment import AlgorithmChoice, Experiment
from fedbilevel.experiments.schema.federation import Federated
from fedbilevel.experiments.schema.keeping import Evaluation, Keeping, Tracking
from fedbilevel.experiments.schema.problems import Own, ProblemChoice

__all__ = [
    "AlgorithmChoice",
    "Auto",
    "Data",
    "EngineChoice",
    "Evaluation",
    "Experiment",
    "Federated",
    "Keeping",
    "Own",
    "Partition",
    "ProblemChoice",
    "Sharded",
    "Tracking",
]
