"""How a run went: every figure that was measured, round by round."""

from collections.abc import Sequence
from math import isfinite, nan

import numpy as np

from fedbilevel.picture import Picture, blank, thinned
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

MARKED = 60
"""The most points that are marked one by one."""


def course(records: Sequence[Record], baseline: Record | None = None) -> Picture:
    """Return a panel a figure, against rounds, with the untuned baseline if any.

    Args:
        records: of the run.
        baseline: of the run, after as many rounds with x fixed.

    Example:
        >>> from fedbilevel import Costs
        >>> records = [Record(0, 0.1, Costs(), {"loss": 1.0, "accuracy": 0.5})]
        >>> len(course(records).figure.axes)
        2
    """
    names = list(records[-1].figures)
    columns = len(names) if len(names) <= 4 else 3
    rows = -(-len(names) // columns)
    figure = blank(10.5 if columns > 2 else 3.5 * columns, 2.4 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        known = thinned([one for one in records if name in one.figures])
        values = np.array([one.figures[name] for one in known])
        marker = "." if len(known) <= MARKED else ""
        panel.plot([one.rounds for one in known], values, marker=marker, markersize=4)
        if baseline is not None and isfinite(baseline.figures.get(name, nan)):
            panel.axhline(baseline.figures[name], color="0.4", linestyle="--")
        panel.set_title(title_of(name), fontsize="medium")
        panel.set_xlabel("rounds")
        panel.grid(alpha=0.3)
        if spans_decades(values):
            panel.set_yscale("log")
    for panel in list(figure.axes)[len(names) :]:
        panel.remove()
    words = "What was measured, after how many rounds. Losses are better lower."
    if baseline is not None:
        words += (
            " The dashed lines are at the end of training without tuning: x at its "
            "start, as many rounds on the same samples."
        )
    return Picture("course", "How the run went", words, figure)


def spans_decades(values: np.ndarray) -> bool:
    """Whether values are positive and so far apart that logarithms show more.

    Example:
        >>> spans_decades(np.array([1e-4, 1.0])), spans_decades(np.array([0.5, 1.0]))
        (True, False)
    """
    finite = values[np.isfinite(values)]
    return bool(len(finite) and finite.min() > 0 and finite.max() > 30 * finite.min())
