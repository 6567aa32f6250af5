"""Curves of all metrics of a run against rounds."""

from collections.abc import Sequence
from math import isfinite, nan

import numpy as np

from fedbilevel.metrics.registry import title_of
from fedbilevel.picture import Picture, blank, thin
from fedbilevel.tracking.records import Record

MARKED = 60
"""Maximum number of points with a marker."""


def history_picture(
    records: Sequence[Record], baseline: Record | None = None
) -> Picture:
    """Return a picture with a panel for each metric, and the untuned baseline.

    Args:
        records: records of the run.
        baseline: record of the baseline, after as many rounds with x fixed.

    Example:
        >>> from fedbilevel import Costs
        >>> records = [Record(0, 0.1, Costs(), {"loss": 1.0, "accuracy": 0.5})]
        >>> len(history_picture(records).figure.axes)
        2
    """
    names = list(records[-1].metrics)
    columns = len(names) if len(names) <= 4 else 3
    rows = -(-len(names) // columns)
    figure = blank(10.5 if columns > 2 else 3.5 * columns, 2.4 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        known = thin([record for record in records if name in record.metrics])
        values = np.array([record.metrics[name] for record in known])
        marker = "." if len(known) <= MARKED else ""
        rounds = [record.rounds for record in known]
        panel.plot(rounds, values, marker=marker, markersize=4)
        if baseline is not None and isfinite(baseline.metrics.get(name, nan)):
            panel.axhline(baseline.metrics[name], color="0.4", linestyle="--")
        panel.set_title(title_of(name), fontsize="medium")
        panel.set_xlabel("rounds")
        panel.grid(alpha=0.3)
        if spans_decades(values):
            panel.set_yscale("log")
    for panel in list(figure.axes)[len(names) :]:
        panel.remove()
    caption = "Metrics against rounds. Lower losses are better."
    if baseline is not None:
        caption += (
            " Dashed lines: baseline without tuning, after as many rounds on the same "
            "samples with x fixed at its initial value."
        )
    return Picture("history", "Metrics by round", caption, figure)


def spans_decades(values: np.ndarray) -> bool:
    """Return whether positive values need a logarithmic axis.

    Example:
        >>> spans_decades(np.array([1e-4, 1.0])), spans_decades(np.array([0.5, 1.0]))
        (True, False)
    """
    finite = values[np.isfinite(values)]
    return bool(len(finite) and finite.min() > 0 and finite.max() > 30 * finite.min())
