"""Whatever was learnt, as plain bars: for problems without a picture of their own."""

import jax
import numpy as np

from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import BARS, Picture, blank


def upper_numbers(x: Upper, before: Upper) -> Picture:
    """Return the numbers of x, a panel an array, with where they started.

    Args:
        x: what was learnt.
        before: where it started.

    Example:
        >>> upper_numbers({"penalty": np.ones(3)}, {"penalty": np.zeros(3)}).name
        'upper'
    """
    leaves = jax.tree_util.tree_leaves_with_path(x)
    starts = jax.tree.leaves(before)
    figure = blank(7, 2.2 * len(leaves))
    panels = figure.subplots(len(leaves), 1, squeeze=False)[:, 0]
    for axes, (path, leaf), start in zip(panels, leaves, starts, strict=True):
        after = np.ravel(np.asarray(leaf))
        origin = np.broadcast_to(np.ravel(np.asarray(start)), after.shape)
        places = np.arange(len(after))
        if len(after) <= BARS:
            axes.bar(places, after, label="learnt")
            axes.plot(places, origin, "k_", label="at the start")
        else:
            axes.plot(places, np.sort(after), label="learnt, in order of size")
            axes.plot(places, np.sort(origin), "k:", label="at the start")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="small")
        axes.set_title(jax.tree_util.keystr(path) or "x", fontsize="medium")
    words = "Each panel is one array of the upper variable x."
    return Picture("upper", "What was tuned", words, figure)
