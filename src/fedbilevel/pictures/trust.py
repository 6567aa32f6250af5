"""How far each training example is trusted: the extremes, and all of them."""

from math import sqrt

import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.special import expit

from fedbilevel.pictures.picture import Picture, blank

SHOWN = 10
"""Examples in a row."""


def trust(
    x: Float[Array | np.ndarray, "examples"],
) -> Float[np.ndarray, "examples"]:
    """Return σ(√n x_i), the weights of `hyper_cleaning`.

    Example:
        >>> trust(np.zeros(2))
        array([0.5, 0.5])
    """
    trusted: Float[np.ndarray, "examples"] = expit(
        sqrt(len(x)) * np.asarray(x, np.float64)
    )
    return trusted


def trusted_images(
    x: Float[Array | np.ndarray, "examples"],
    features: Float[np.ndarray, "examples features"],
    labels: Int[np.ndarray, "examples"],
    wrong: Bool[np.ndarray, "examples"] | None,
    shape: tuple[int, int],
) -> Picture:
    """Return the most and the least trusted training images with their labels.

    Args:
        x: what was learnt.
        features: pixels of each training example.
        labels: those that training uses.
        wrong: which labels are known to be wrong.
        shape: height and width of an image.

    Example:
        >>> images, labels = np.zeros((20, 64)), np.zeros(20, np.int32)
        >>> trusted_images(np.arange(20.0), images, labels, None, (8, 8)).name
        'trusted'
    """
    order = np.argsort(np.asarray(x))
    shown = min(SHOWN, len(order) // 2)
    rows = {"most\ntrusted": order[::-1][:shown], "least\ntrusted": order[:shown]}
    figure = blank(9, 2.6)
    grid = figure.subplots(2, shown, squeeze=False)
    for panels, (words, chosen) in zip(grid, rows.items(), strict=True):
        for panel, example in zip(panels, chosen, strict=True):
            panel.imshow(features[example].reshape(shape), cmap="gray_r")
            panel.set_xticks([])
            panel.set_yticks([])
            spoilt = wrong is not None and wrong[example]
            panel.set_title(
                f"“{labels[example]}”",
                color="tab:red" if spoilt else "black",
                fontsize="medium",
            )
        panels[0].set_ylabel(words, rotation=0, ha="right", va="center")
    words = "Above each image is the label that training uses."
    if wrong is not None:
        words += " Red ones are wrong; the run was never told which."
    return Picture("trusted", "Most and least trusted examples", words, figure)


def trust_histogram(
    x: Float[Array | np.ndarray, "examples"],
    wrong: Bool[np.ndarray, "examples"] | None,
) -> Picture:
    """Return how many examples have how much trust.

    Args:
        x: what was learnt.
        wrong: which labels are known to be wrong.

    Example:
        >>> trust_histogram(np.arange(20.0), np.arange(20) < 5).name
        'trust'
    """
    weights = trust(x)
    figure = blank(6, 3)
    axes = figure.subplots()
    bins = np.linspace(0, 1, 31).tolist()
    if wrong is None:
        axes.hist(weights, bins=bins)
        words = "On the left are examples that training all but ignores."
    else:
        axes.hist(
            [weights[~wrong], weights[wrong]],
            bins=bins,
            stacked=True,
            color=["tab:blue", "tab:red"],
            label=["label is right", "label is wrong"],
        )
        axes.legend()
        words = (
            "Wrong labels should gather on the left, where training all but ignores "
            "them; the run was never told which they are."
        )
    axes.set_xlabel("weight of an example in training")
    axes.set_ylabel("examples")
    return Picture("trust", "How far examples are trusted", words, figure)
