"""Curves of metrics against costs, with mean and range over seeds."""

from collections.abc import Sequence
from enum import Enum
from itertools import takewhile
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedbilevel.experiments.groups import Group, SeedRun
from fedbilevel.metrics.registry import title_of
from fedbilevel.picture import blank, thin
from fedbilevel.pictures.history import spans_decades
from fedbilevel.tracking.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "Line: mean over seeds; band: minimum to maximum over seeds."
"""Explanation of a curve of several seeds."""

FAILED = "Dashed up to ×: a failed seed, excluded from mean and band."
"""Explanation of the curve of a failed seed."""

CHARACTERS = 14
"""Characters per inch of a caption."""


class Axis(Enum):
    """A cost on the horizontal axis.

    Attributes:
        value: name on the command line.
        label: label of the axis.

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
        """Return the cost of a run at a record.

        Example:
            >>> from fedbilevel import Costs
            >>> record = Record(3, 1.5, Costs(bytes_up=2, bytes_down=3), {})
            >>> Axis.BYTES.of(record)
            5
        """
        costs = {
            Axis.ROUNDS: record.rounds,
            Axis.EXCHANGES: record.costs.exchanges,
            Axis.SAMPLES: record.costs.samples,
            Axis.BYTES: record.costs.bytes,
            Axis.SECONDS: record.seconds,
        }
        return costs[self]


AXES = (Axis.ROUNDS, Axis.SAMPLES, Axis.BYTES, Axis.SECONDS)
"""Default axes of a comparison."""


def curves(
    groups: Sequence[Group], metrics: Sequence[str], axes: Sequence[Axis] = AXES
) -> "Figure":
    """Return a figure with a row of panels per metric and a column per axis.

    A group is drawn as the mean over its successful seeds, with a band from their
    minimum to their maximum. Failed seeds are dashed lines up to their last finite
    value; the legend counts them.

    Args:
        groups: runs, grouped by settings.
        metrics: names of metrics, at least one.
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
    figure = blank(width, 1.2 + 2.4 * len(metrics))
    panels = figure.subplots(
        len(metrics), len(axes), sharex="col", sharey="row", squeeze=False
    )
    for row, metric in zip(panels, metrics, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            for number, group in enumerate(groups):
                _draw(panel, group, axis, metric, f"C{number % 10}")
            panel.grid(alpha=0.3)
        row[0].set_ylabel(title_of(metric))
        limits = _fit(row[0], groups, metric)
        for panel, axis in zip(row, axes, strict=True):
            for number, group in enumerate(groups):
                _mark_ends(panel, group, axis, metric, f"C{number % 10}", limits)
    _label(panels[-1], axes)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(4, int(CHARACTERS * width) // (longest + 8)))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)
    text = caption(groups)
    if text:
        figure.supxlabel(fill(text, int(CHARACTERS * width)), fontsize="small")
    return figure


def caption(groups: Sequence[Group]) -> str:
    """Return the explanation of lines and bands; empty if each group is one run.

    Example:
        >>> caption([Group("FedBiO", ())])
        ''
    """
    several = any(len(group.successful) > 1 for group in groups)
    failed = any(group.failed for group in groups)
    return " ".join([BAND] * several + [FAILED] * failed)


def _draw(panel: "Axes", group: Group, axis: Axis, metric: str, color: str) -> None:
    label = group.label
    if group.failed:
        seeds = "seed" if len(group.runs) == 1 else "seeds"
        label += f", {len(group.failed)} of {len(group.runs)} {seeds} failed"
    if group.successful:
        _draw_mean(panel, group.successful, axis, metric, color, label)
    else:
        panel.plot([], [], color=color, linestyle="--", label=label)
    for run in group.failed:
        finite = thin(_finite(run, metric))
        costs = [axis.of(record) for record in finite]
        values = [record.metrics[metric] for record in finite]
        panel.plot(costs, values, color=color, linestyle="--", linewidth=1)


def _draw_mean(
    panel: "Axes",
    runs: Sequence[SeedRun],
    axis: Axis,
    metric: str,
    color: str,
    label: str,
) -> None:
    # Seeds are averaged at common rounds; their other costs may differ.
    known = [
        {record.rounds: record for record in run.records if metric in record.metrics}
        for run in runs
    ]
    common = thin(sorted(set.intersection(*map(set, known))))
    costs = np.array([[axis.of(run[n]) for n in common] for run in known])
    values = np.array([[run[n].metrics[metric] for n in common] for run in known])
    mean_costs = costs.mean(axis=0)
    panel.plot(mean_costs, values.mean(axis=0), color=color, label=label)
    if len(runs) > 1:
        panel.fill_between(
            mean_costs,
            values.min(axis=0),
            values.max(axis=0),
            color=color,
            alpha=0.2,
            linewidth=0,
        )


def _fit(panel: "Axes", groups: Sequence[Group], metric: str) -> tuple[float, float]:
    """Set the limits of a row of panels from successful runs; return the limits.

    A failed run may have reached 1e30, which would flatten all other curves.
    """
    runs = [run for group in groups for run in group.successful]
    failed = [run for group in groups for run in group.failed]
    ends = [record.metrics[metric] for run in failed for record in _finite(run, metric)]
    if not runs and spans_decades(np.array(ends)):
        panel.set_yscale("log")
    if not (runs and failed):
        return -np.inf, np.inf
    starts = [record for run in failed for record in _finite(run, metric)[:1]]
    records = [record for run in runs for record in run.records] + starts
    values = np.array([r.metrics[metric] for r in records if metric in r.metrics])
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
    metric: str,
    color: str,
    limits: tuple[float, float],
) -> None:
    for run in group.failed:
        for record in _finite(run, metric)[-1:]:
            # A curve that leaves the panel is marked at its edge.
            height = float(np.clip(record.metrics[metric], *limits))
            panel.plot(axis.of(record), height, "x", color=color, clip_on=False)


def _finite(run: SeedRun, metric: str) -> list[Record]:
    """Return the records of a failed run before the first value that is not finite."""
    known = (record for record in run.records if metric in record.metrics)
    return list(takewhile(lambda record: isfinite(record.metrics[metric]), known))


def _label(panels: Sequence["Axes"], axes: Sequence[Axis]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for panel, axis in zip(panels, axes, strict=True):
        panel.set_xlabel(axis.label)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(4))
