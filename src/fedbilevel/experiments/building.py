"""From what an experiment asks for to what `run` takes."""

from fedbilevel.experiments.choices import (
    Cleaning,
    Experiment,
    LossTuning,
    Own,
    Regularisation,
    Representation,
)
from fedbilevel.experiments.dealing import deal
from fedbilevel.experiments.finite import require_finite
from fedbilevel.experiments.own import own_task
from fedbilevel.problems.hyper_cleaning import hyper_cleaning
from fedbilevel.problems.hyper_representation import hyper_representation
from fedbilevel.problems.loss_tuning import loss_tuning
from fedbilevel.problems.regularisation import regularisation
from fedbilevel.problems.task import Task


def task_of(experiment: Experiment) -> Task:
    """Return the problem with its data.

    Example:
        >>> from fedbilevel import FedBiO
        >>> task_of(Experiment(FedBiO(0.1))).devices.device_count
        8
    """
    task = _task_of(experiment)
    require_finite(task.devices)
    return task


def _task_of(experiment: Experiment) -> Task:
    problem = experiment.problem
    if isinstance(problem, Own):
        return own_task(problem.file)
    split, wrong = deal(experiment.data, experiment.partition)
    match problem:
        case Regularisation(penalty):
            return regularisation(split, penalty=penalty)
        case Cleaning(ridge):
            return hyper_cleaning(split, ridge=ridge, wrong=wrong)
        case LossTuning(ridge):
            return loss_tuning(split, ridge=ridge)
        case Representation(units, ridge):
            return hyper_representation(split, units=units, ridge=ridge)
