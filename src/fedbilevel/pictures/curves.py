"""Curves of metrics against costs: a mean and a band over seeds, and failed seeds."""

from collections.abc import Sequence
from enum import Enum
from itertools import takewhile
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedbilevel.experiments.groups import Group, SeedRun
from fedbilevel.picture import blank, thinned
from fedbilevel.pictures.history import spans_decades
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "Line: mean over seeds; band: from the smallest to the largest seed."
"""How to read a curve of several seeds."""

FAILED = "Dashed up to ×: a failed seed, left out of mean and band."
"""How to read the curve of a failed seed."""

CHARACTERS = 14
"""The characters of a text that fit into an inch."""


class Axis(Enum):
    """A cost that metrics can be drawn against.

    Attributes:
        value: its name on the command line.
        label: its label in a figure.

    Example:
        >>> Axis("bytes").label
        'bytes sent, both ways'
    """

    label: str

    ROUNDS = "rounds", "rounds"
    EXCHANGES = "exchanges", "exchanges"
    SAMPLES = "samples", "examples drawn"
    BYTES = "bytes", "bytes sent, both ways"
    SECONDS = "seconds", "seconds, compilation included"

    def __new__(cls, value: str, label: str) -> "Axis":
        """Return a member whose value is its name on the command line."""
        member = object.__new__(cls)
        member._value_, member.label = value, label
        return member

    def of(self, record: Record) -> float | int:
        """Return what a run had spent at a record.

        Example:
            >>> from fedbilevel import Costs
            >>> record = Record(3, 1.5, Costs(bytes_up=2, bytes_down=3), {})
            >>> Axis.BYTES.of(record)
            5
        """
        spent = {
            Axis.ROUNDS: record.rounds,
            Axis.EXCHANGES: record.costs.exchanges,
            Axis.SAMPLES: record.costs.samples,
            Axis.BYTES: record.costs.bytes,
            Axis.SECONDS: record.seconds,
        }
        return spent[self]


AXES = (Axis.ROUNDS, Axis.SAMPLES, Axis.BYTES, Axis.SECONDS)
"""The axes of a comparison, unless others are asked for."""


def curves(
    groups: Sequence[Group], figures: Sequence[str], axes: Sequence[Axis] = AXES
) -> "Figure":
    """Return a picture: a row of panels for each metric, a column for each axis.

    A group is a line, the mean over its seeds that did not fail, and a band from their
    smallest to their largest value. Failed seeds are dashed lines up to their last
    finite value; the legend counts them.

    Args:
        groups: the runs.
        figures: names of metrics, at least one.
        axes: horizontal axes, at least one.

    Example:
        >>> from pathlib import Path
        >>> from fedbilevel import Costs, FedBiO
        >>> from fedbilevel.experiments.schema import Experiment
        >>> records = [Record(0, 0.1, Costs(), {"loss": 1.0})]
        >>> run = SeedRun(Path("runs/a"), Experiment(FedBiO(0.1)), records, None)
        >>> len(curves([Group("FedBiO", (run,))], ["loss"], [Axis.ROUNDS]).axes)
        1
    """
    width = max(5.0, 2.75 * len(axes))
    picture = blank(width, 1.2 + 2.4 * len(figures))
    panels = picture.subplots(
        len(figures), len(axes), sharex="col", sharey="row", squeeze=False
    )
    for row, figure in zip(panels, figures, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            for number, group in enumerate(groups):
                _draw(panel, group, axis, figure, f"C{number % 10}")
            panel.grid(alpha=0.3)
        row[0].set_ylabel(title_of(figure))
        shown = _fitted(row[0], groups, figure)
        for panel, axis in zip(row, axes, strict=True):
            for number, group in enumerate(groups):
                _mark_ends(panel, group, axis, figure, f"C{number % 10}", shown)
    _label(panels[-1], axes)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(4, int(CHARACTERS * width) // (longest + 8)))
    picture.legend(handles, labels, loc="outside upper center", ncols=columns)
    words = caption(groups)
    if words:
        picture.supxlabel(fill(words, int(CHARACTERS * width)), fontsize="small")
    return picture


def caption(groups: Sequence[Group]) -> str:
    """Return what lines and bands are; nothing where each group is one finished run.

    Example:
        >>> caption([Group("FedBiO", ())])
        ''
    """
    several = any(len(group.successful) > 1 for group in groups)
    failed = any(group.failed for group in groups)
    return " ".join([BAND] * several + [FAILED] * failed)


def _draw(panel: "Axes", group: Group, axis: Axis, figure: str, color: str) -> None:
    label = group.label
    if group.failed:
        seeds = "seed" if len(group.runs) == 1 else "seeds"
        label += f", {len(group.failed)} of {len(group.runs)} {seeds} failed"
    if group.successful:
        _draw_mean(panel, group.successful, axis, figure, color, label)
    else:
        panel.plot([], [], color=color, linestyle="--", label=label)
    for run in group.failed:
        finite = thinned(_finite(run, figure))
        places = [axis.of(record) for record in finite]
        values = [record.figures[figure] for record in finite]
        panel.plot(places, values, color=color, linestyle="--", linewidth=1)


def _draw_mean(
    panel: "Axes",
    runs: Sequence[SeedRun],
    axis: Axis,
    figure: str,
    color: str,
    label: str,
) -> None:
    # Of seeds, what was measured after the same rounds; other axes may differ.
    known = [
        {one.rounds: one for one in run.records if figure in one.figures}
        for run in runs
    ]
    common = thinned(sorted(set.intersection(*map(set, known))))
    places = np.array([[axis.of(run[n]) for n in common] for run in known])
    values = np.array([[run[n].figures[figure] for n in common] for run in known])
    place = places.mean(axis=0)
    panel.plot(place, values.mean(axis=0), color=color, label=label)
    if len(runs) > 1:
        panel.fill_between(
            place,
            values.min(axis=0),
            values.max(axis=0),
            color=color,
            alpha=0.2,
            linewidth=0,
        )


def _fitted(panel: "Axes", groups: Sequence[Group], figure: str) -> tuple[float, float]:
    """Fit a row of panels to runs that did not fail; return which values it shows.

    A failed run may have reached 1e30: all others would be one flat line.
    """
    runs = [run for group in groups for run in group.successful]
    failed = [run for group in groups for run in group.failed]
    ends = [record for run in failed for record in _finite(run, figure)]
    if not runs and spans_decades(np.array([one.figures[figure] for one in ends])):
        panel.set_yscale("log")
    if not (runs and failed):
        return -np.inf, np.inf
    starts = [record for run in failed for record in _finite(run, figure)[:1]]
    shown = [record for run in runs for record in run.records] + starts
    values = np.array([one.figures[figure] for one in shown if figure in one.figures])
    values = values[np.isfinite(values)]
    if not len(values):
        return -np.inf, np.inf
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    panel.set_ylim(low - margin, high + margin)
    return low - margin, high + margin


def _mark_ends(
    panel: "Axes",
    group: Group,
    axis: Axis,
    figure: str,
    color: str,
    shown: tuple[float, float],
) -> None:
    for run in group.failed:
        for record in _finite(run, figure)[-1:]:
            # A curve that has left the panel ends at its edge.
            height = float(np.clip(record.figures[figure], *shown))
            panel.plot(axis.of(record), height, "x", color=color, clip_on=False)


def _finite(run: SeedRun, figure: str) -> list[Record]:
    """Return the records of a failed run up to the first value that is not finite."""
    known = (record for record in run.records if figure in record.figures)
    return list(takewhile(lambda one: isfinite(one.figures[figure]), known))


def _label(panels: Sequence["Axes"], axes: Sequence[Axis]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for panel, axis in zip(panels, axes, strict=True):
        panel.set_xlabel(axis.label)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(4))
