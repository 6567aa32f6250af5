"""From what an experiment asks for to what `run` takes."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

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
            sizes = [len(rows) for rows in split.training_rows]
            weights = sizes if experiment.weigh_by_size else None
            return loss_tuning(split, ridge=ridge, weights=weights)
        case Representation(units, ridge):
            return hyper_representation(split, units=units, ridge=ridge)


@runtime_checkable
class Sized(Protocol):
    """Devices whose sizes are known."""

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""


def weights_of(
    experiment: Experiment, devices: Sized
) -> Int[np.ndarray, "devices"] | None:
    """Return how much each device counts; none where all count alike.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1), weigh_by_size=True)
        >>> weights_of(asked, task_of(asked).devices).sum()
        np.int64(1150)
    """
    if not experiment.weigh_by_size:
        return None
    sizes, limit = devices.lower_sizes, experiment.size_limit
    return sizes if limit is None else np.asarray(np.minimum(sizes, limit))
