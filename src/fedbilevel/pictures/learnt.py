"""The pictures of what an experiment has learnt."""

import numpy as np

from fedbilevel.experiments.schema import (
    Cleaning,
    Experiment,
    LossTuning,
    Regularisation,
    Representation,
)
from fedbilevel.experiments.split_data import split_data
from fedbilevel.mathematics.problem import Upper
from fedbilevel.pictures.classes import class_weights
from fedbilevel.pictures.numbers import upper_numbers
from fedbilevel.pictures.penalties import penalties
from fedbilevel.pictures.picture import IMAGES, Picture
from fedbilevel.pictures.trust import trust_histogram, trusted_images
from fedbilevel.pictures.units import unit_images


def learnt(experiment: Experiment, x: Upper, before: Upper) -> list[Picture]:
    """Return what a person would rather look at than at numbers.

    Args:
        experiment: that was run.
        x: what it has learnt.
        before: where x started.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1))
        >>> [one.name for one in learnt(asked, np.zeros(64), np.zeros(64))]
        ['penalties']
    """
    shape = IMAGES.get(experiment.data.name)
    match experiment.problem:
        case Regularisation():
            return [penalties(x, shape)]
        case Cleaning():
            split, wrong, _ = split_data(experiment.data, experiment.partition)
            histogram = trust_histogram(x, wrong)
            if shape is None:
                return [histogram]
            features = np.asarray(split.training.features)
            labels = np.asarray(split.training.labels)
            return [trusted_images(x, features, labels, wrong, shape), histogram]
        case LossTuning():
            split, *_ = split_data(experiment.data, experiment.partition)
            counts = np.bincount(split.training.labels, minlength=split.classes)
            return [class_weights(x, counts)]
        case Representation() if shape is not None:
            return [unit_images(x[0].weights, shape)]
    return [upper_numbers(x, before)]
