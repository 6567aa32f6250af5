"""Bars of the upper variable, for problems without custom pictures."""

import jax
import numpy as np

from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import BARS, Picture, blank


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
