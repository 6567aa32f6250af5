"""Pictures of the solution of a run."""

from functools import partial

import jax
import numpy as np

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.split_data import split_data
from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import BARS, Picture, blank
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


def upper_numbers(x: Upper, before: Upper) -> Picture:
    """Return a picture of x, with a panel for each array.

    Args:
        x: solution of the run.
        before: initial value of x.
    """
    leaves = jax.tree_util.tree_leaves_with_path(x)
    starts = jax.tree.leaves(before)
    figure = blank(7, 2.2 * len(leaves))
    panels = figure.subplots(len(leaves), 1, squeeze=False)[:, 0]
    for axes, (path, leaf), start in zip(panels, leaves, starts, strict=True):
        after = np.ravel(np.asarray(leaf))
        origin = np.broadcast_to(np.ravel(np.asarray(start)), after.shape)
        indices = np.arange(len(after))
        if len(after) <= BARS:
            axes.bar(indices, after, label="solution")
            axes.plot(indices, origin, "k_", label="initial value")
        else:
            axes.plot(indices, np.sort(after), label="solution, sorted")
            axes.plot(indices, np.sort(origin), "k:", label="initial value")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="small")
        axes.set_title(jax.tree_util.keystr(path) or "x", fontsize="medium")
    caption = "Each panel shows one array of the upper variable x."
    return Picture("upper", "Upper variable", caption, figure)
