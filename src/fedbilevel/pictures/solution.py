"""Pictures of the solution of a run."""

from functools import partial

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.split_data import split_data
from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import Picture
from fedbilevel.pictures.bars import upper_numbers
from fedbilevel.problems.built_in import PictureProblem

IMAGES = {"digits": (8, 8), "mnist": (28, 28), "fashion_mnist": (28, 28)}
"""Height and width of images, by data set whose features are pixels."""


def solution_pictures(experiment: Experiment, x: Upper, before: Upper) -> list[Picture]:
    """Return the pictures of x that the problem defines, or bars of its values.

    Args:
        experiment: settings of the run.
        x: solution of the run.
        before: initial value of x.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1))
        >>> pictures = solution_pictures(experiment, np.zeros(64), np.zeros(64))
        >>> [picture.name for picture in pictures]
        ['penalties']
    """
    problem = experiment.problem
    if not isinstance(problem, PictureProblem):
        return [upper_numbers(x, before)]
    data = partial(split_data, experiment.data, experiment.partition)
    pictures = problem.pictures(x, data, IMAGES.get(experiment.data.name))
    return pictures or [upper_numbers(x, before)]
