"""The pictures of what an experiment has learnt."""

from functools import partial

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.split_data import split_data
from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import Picture
from fedbilevel.pictures.bars import upper_numbers
from fedbilevel.problems.ready_made import WithPictures

IMAGES = {"digits": (8, 8), "mnist": (28, 28), "fashion_mnist": (28, 28)}
"""The data sets whose features are the pixels of an image, and its height and width."""


def learnt(experiment: Experiment, x: Upper, before: Upper) -> list[Picture]:
    """Return what a person would rather look at than at numbers.

    Args:
        experiment: that was run.
        x: what it has learnt.
        before: where x started.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1))
        >>> [one.name for one in learnt(asked, np.zeros(64), np.zeros(64))]
        ['penalties']
    """
    problem = experiment.problem
    if not isinstance(problem, WithPictures):
        return [upper_numbers(x, before)]
    data = partial(split_data, experiment.data, experiment.partition)
    drawn = problem.pictures(x, data, IMAGES.get(experiment.data.name))
    return drawn or [upper_numbers(x, before)]
