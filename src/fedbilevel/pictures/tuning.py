"""What mattered in a search: the score of every trial against each setting."""

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from fedbilevel.experiments.tuning import Goal
from fedbilevel.picture import Picture, blank
from fedbilevel.pictures.history import spans_decades
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.study import Trial
from fedbilevel.tuning.tuner import TuningResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
"""Panels in a row."""
SHOWN = 0.9
"""The share of finite values that a panel shows: the others may be huge."""


def tuning_picture(found: TuningResult, goal: Goal = Goal()) -> Picture:
    """Return a panel for each setting: the value of every trial against the setting.

    Args:
        found: the result of a search.
        goal: what was improved.

    Example:
        >>> from fedbilevel import FedBiO
        >>> trials = tuple(
        ...     Trial(n, 0, {"upper_rate": 2.0**n}, {7: (1.0 - 0.1 * n,)})
        ...     for n in range(3)
        ... )
        >>> found = TuningResult(FedBiO(0.1), trials[2], trials[0], trials, {}, (0,))
        >>> len(tuning_picture(found).figure.axes)
        1
    """
    names = sorted(
        found.start.settings, key=lambda name: -found.importances.get(name, 0.0)
    )
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = blank(max(5.0, 3.5 * columns), 0.6 + 2.6 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        _draw(panel, found, goal, name)
        panel.set_title(_title(found, name), fontsize="medium")
    for row in panels:
        row[0].set_ylabel(title_of(goal.metric))
    for panel in list(panels.flat)[len(names) :]:
        panel.remove()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    words = (
        "A dot is a setting, after the rounds that it was run for; × is one that "
        "diverged. Percentages say how much a setting decides which trials are among "
        "the best tenth."
    )
    return Picture("tuning", "What mattered", words, figure)


def _title(found: TuningResult, name: str) -> str:
    share = found.importances.get(name)
    # What every name begins with says nothing.
    short = name.removeprefix("algorithm.")
    return short if share is None else f"{short} ({share:.0%})"


def _draw(panel: "Axes", found: TuningResult, goal: Goal, name: str) -> None:
    # A given rate may be 0, which has no place on an axis of logarithms.
    shown = [one for one in found.trials if one.settings[name] > 0]
    lengths = sorted({one.rounds for one in shown})
    finite = [one for one in shown if isfinite(one.score)]
    for place, rounds in enumerate(lengths):
        reached = [one for one in finite if one.rounds == rounds]
        panel.scatter(
            [one.settings[name] for one in reached],
            [goal.score(one.score) for one in reached],
            s=14,
            color=f"C{place}",
            label=f"{rounds} rounds",
        )
    # Marks of their own, so that they are seen in the panel of any setting.
    for trial, marker, label in (
        (found.start, "D", "start"),
        (found.best, "*", "best"),
    ):
        if isfinite(trial.score) and trial.settings[name] > 0:
            panel.scatter(
                trial.settings[name],
                goal.score(trial.score),
                s=90,
                marker=marker,
                facecolor="none",
                edgecolor="black",
                label=label,
                zorder=3,
            )
    _label(panel, [one.settings[name] for one in shown])
    panel.grid(alpha=0.3)
    _fit(panel, finite, goal)
    lost = [one for one in shown if not isfinite(one.score)]
    if lost:
        bottom, top = panel.get_ylim()
        panel.plot(
            [one.settings[name] for one in lost],
            [bottom if goal.maximise else top] * len(lost),
            "x",
            color="0.4",
            markersize=5,
            clip_on=False,
            label="diverged",
        )
        panel.set_ylim(bottom, top)


def _label(panel: "Axes", values: list[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    panel.set_xscale("log")
    # One label a decade leaves a narrow range without any.
    narrow = bool(values) and max(values) < 100 * min(values)
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if narrow else (1.0,)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())


def _fit(panel: "Axes", finite: list[Trial], goal: Goal) -> None:
    """Show most values: a trial that was about to diverge would flatten the others."""
    values = np.array([goal.score(one.score) for one in finite])
    if not len(values):
        return
    if spans_decades(values):
        panel.set_yscale("log")
        return
    low, high = np.quantile(values, (1 - SHOWN, 1.0) if goal.maximise else (0, SHOWN))
    margin = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    panel.set_ylim(low - margin, high + margin)
