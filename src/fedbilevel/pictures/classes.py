"""What was learnt about each class."""

import numpy as np
from jaxtyping import Int
from scipy.special import expit

from fedbilevel.pictures.picture import Picture, blank
from fedbilevel.problems.loss_tuning import LossParameters


def class_weights(x: LossParameters, counts: Int[np.ndarray, "classes"]) -> Picture:
    """Return the scale and shift of each class beside its number of examples.

    Args:
        x: what was learnt by `loss_tuning`.
        counts: training examples of each class.

    Example:
        >>> x = LossParameters(np.zeros(3), np.zeros(3))
        >>> class_weights(x, np.array([100, 10, 1])).name
        'classes'
    """
    figure = blank(9, 2.8)
    classes = [str(one) for one in range(len(counts))]
    panels = {
        "training examples": (counts, "tab:gray"),
        "scale of the score, σ(scale)": (expit(np.asarray(x.scale)), "tab:blue"),
        "shift of the score": (np.asarray(x.shift), "tab:green"),
    }
    for axes, (title, (values, colour)) in zip(
        figure.subplots(1, 3), panels.items(), strict=True
    ):
        axes.bar(classes, values, color=colour)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("class")
    words = (
        "Training sees the score of each class scaled and shifted. Where the shift is "
        "low, the model must raise the score of that class by itself: so rare classes "
        "come to count."
    )
    return Picture("classes", "The training loss of each class", words, figure)
