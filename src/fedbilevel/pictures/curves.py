"""Curves of what was measured against what was spent, with a band over seeds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbilevel.pictures.picture import blank, thinned
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "rounds": "rounds",
    "samples": "examples drawn",
    "bytes": "bytes sent, both ways",
    "seconds": "seconds, compilation included",
}
"""What a figure can be drawn against, and how an axis is labelled."""


def spent(record: Record, axis: str) -> float | int:
    """Return where on an axis a record stands.

    Example:
        >>> from fedbilevel import Costs
        >>> spent(Record(3, 1.5, Costs(bytes_up=2, bytes_down=3), {}), "bytes")
        5
    """
    places = {
        "rounds": record.rounds,
        "samples": record.costs.samples,
        "bytes": record.costs.bytes,
        "seconds": record.seconds,
    }
    return places[axis]


def curves(runs: Mapping[str, Sequence[Sequence[Record]]], figure: str) -> "Figure":
    """Return a picture: a panel an axis, a line a label, a band where seeds differ.

    Args:
        runs: by label, the records of each of its seeds.
        figure: the name of what was measured.

    Example:
        >>> from fedbilevel import Costs
        >>> runs = [[Record(0, 0.1, Costs(), {"loss": 1.0})]]
        >>> len(curves({"FedBiO": runs}, "loss").axes)
        4
    """
    picture = blank(11, 3.6)
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panels = picture.subplots(1, len(AXES), sharey=True)
    for panel, (axis, words) in zip(panels, AXES.items(), strict=True):
        for label, seeds in runs.items():
            _draw(panel, seeds, axis, figure, label)
        panel.set_xlabel(words)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel(title_of(figure))
    picture.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4
    )
    return picture


def _draw(
    panel: "Axes",
    seeds: Sequence[Sequence[Record]],
    axis: str,
    figure: str,
    label: str,
) -> None:
    # Of seeds, what was measured after the same rounds; other axes may differ.
    known = [
        {one.rounds: one for one in records if figure in one.figures}
        for records in seeds
    ]
    common = thinned(sorted(set.intersection(*map(set, known))))
    places = np.array([[spent(run[n], axis) for n in common] for run in known])
    values = np.array([[run[n].figures[figure] for n in common] for run in known])
    place = places.mean(axis=0)
    (line,) = panel.plot(place, values.mean(axis=0), label=label)
    if len(seeds) > 1:
        panel.fill_between(
            place,
            values.min(axis=0),
            values.max(axis=0),
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
