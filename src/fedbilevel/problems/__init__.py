"""Ready-made bilevel problems: functions that return a `Task`, and their settings."""

from fedbilevel.problems.built_in import (
    BuiltInProblem,
    BundledProblem,
    DataProblem,
    PictureProblem,
)
from fedbilevel.problems.cleaning_network import (
    CleaningNetwork,
    WeightingNetwork,
    cleaning_network,
)
from fedbilevel.problems.hyper_cleaning import (
    Cleaning,
    hyper_cleaning,
    trust,
    trust_histogram,
    trusted_images,
)
from fedbilevel.problems.hyper_representation import (
    Representation,
    hyper_representation,
    unit_images,
)
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import NoisyLabels, redraw_labels
from fedbilevel.problems.loss_tuning import (
    LossParameters,
    LossTuning,
    class_picture,
    loss_tuning,
)
from fedbilevel.problems.quadratic import Quadratic, random_quadratic
from fedbilevel.problems.quadratic_task import QuadraticTask, quadratic_task
from fedbilevel.problems.regularisation import Regularisation, penalties, regularisation
from fedbilevel.problems.site_weights import (
    ClassWeights,
    LabelMaps,
    PlainWeights,
    SiteForm,
    linear_label_losses,
    site_weights,
)
from fedbilevel.problems.split import LabelledRows, LabelledTable, Split, SplitData
from fedbilevel.problems.task import Model, Task, TaskMetric

__all__ = [
    "BuiltInProblem",
    "BundledProblem",
    "ClassWeights",
    "Cleaning",
    "CleaningNetwork",
    "DataProblem",
    "LabelMaps",
    "LabelledRows",
    "LabelledTable",
    "LossParameters",
    "LossTuning",
    "Model",
    "NoisyLabels",
    "PictureProblem",
    "PlainWeights",
    "Quadratic",
    "QuadraticTask",
    "Regularisation",
    "Representation",
    "SiteForm",
    "Split",
    "SplitData",
    "Task",
    "TaskMetric",
    "WeightingNetwork",
    "class_picture",
    "cleaning_network",
    "hyper_cleaning",
    "hyper_representation",
    "linear_label_losses",
    "long_tail",
    "loss_tuning",
    "penalties",
    "quadratic_task",
    "random_quadratic",
    "redraw_labels",
    "regularisation",
    "site_weights",
    "trust",
    "trust_histogram",
    "trusted_images",
    "unit_images",
]
