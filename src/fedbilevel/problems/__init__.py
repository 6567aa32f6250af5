"""Ready-made bilevel problems: each function returns a `Task` that `run` can take."""

from fedbilevel.problems.cleaning_network import WeightingNetwork, cleaning_network
from fedbilevel.problems.hyper_cleaning import hyper_cleaning
from fedbilevel.problems.hyper_representation import hyper_representation
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import Redrawn, redraw_labels
from fedbilevel.problems.loss_tuning import LossParameters, loss_tuning
from fedbilevel.problems.quadratic import Quadratic, random_quadratic
from fedbilevel.problems.quadratic_task import quadratic_task
from fedbilevel.problems.regularisation import regularisation
from fedbilevel.problems.split import LabelledRows, LabelledTable, Split
from fedbilevel.problems.task import Metric, Model, Task

__all__ = [
    "LabelledRows",
    "LabelledTable",
    "LossParameters",
    "Metric",
    "Model",
    "Quadratic",
    "Redrawn",
    "Split",
    "Task",
    "WeightingNetwork",
    "cleaning_network",
    "hyper_cleaning",
    "hyper_representation",
    "long_tail",
    "loss_tuning",
    "quadratic_task",
    "random_quadratic",
    "redraw_labels",
    "regularisation",
]
