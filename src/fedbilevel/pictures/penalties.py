"""The penalties that were learnt, as an image where features are pixels."""

import numpy as np
from jaxtyping import Array, Float

from fedbilevel.pictures.picture import BARS, Picture, blank


def penalties(
    x: Float[Array | np.ndarray, "features"], shape: tuple[int, int] | None
) -> Picture:
    """Return a picture of e^x, the penalty of each feature.

    Args:
        x: what was learnt by `regularisation`.
        shape: height and width of the image whose pixels the features are, if any.

    Example:
        >>> penalties(np.zeros(64), (8, 8)).name
        'penalties'
    """
    learnt = np.exp(np.asarray(x, np.float64))
    if shape is not None:
        figure = blank(4.2, 3.4)
        from matplotlib.colors import LogNorm

        axes = figure.subplots()
        # A penalty that is the same everywhere has no range to be coloured by.
        limits = LogNorm(learnt.min() / 1.01, learnt.max() * 1.01)
        shown = axes.imshow(learnt.reshape(shape), cmap="viridis_r", norm=limits)
        axes.set_xticks([])
        axes.set_yticks([])
        figure.colorbar(shown, label="penalty (log scale)")
        words = (
            "Each square is a pixel. The model may use bright pixels freely; on dark "
            "ones its weights are held near zero."
        )
        return Picture("penalties", "The penalty of each pixel", words, figure)
    figure = blank(7, 3)
    axes = figure.subplots()
    order = np.argsort(learnt)
    if len(order) <= BARS:
        axes.bar([str(feature) for feature in order], learnt[order])
        axes.tick_params(axis="x", labelrotation=90, labelsize="x-small")
        axes.set_xlabel("feature, from least to most penalised")
    else:
        axes.plot(learnt[order])
        axes.set_xlabel("features, from least to most penalised")
    axes.set_yscale("log")
    axes.set_ylabel("penalty")
    words = "The model may use features on the left freely; those on the right hardly."
    return Picture("penalties", "The penalty of each feature", words, figure)
