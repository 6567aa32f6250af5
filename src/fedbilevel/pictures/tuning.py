"""A picture of tuning: the score of every trial against each setting."""

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from fedbilevel.experiments.tuning import Goal
from fedbilevel.metrics.registry import title_of
from fedbilevel.picture import Picture, blank
from fedbilevel.pictures.history import spans_decades
from fedbilevel.plurals import count_noun
from fedbilevel.tuning.study import Trial
from fedbilevel.tuning.tuner import TuningResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
"""Number of panels in a row."""
VISIBLE = 0.9
"""Fraction of finite values that a panel shows: the others may be huge."""


def tuning_picture(result: TuningResult, goal: Goal = Goal()) -> Picture:
    """Return a picture with a panel for each setting: scores of trials against it.

    Args:
        result: result of tuning.
        goal: metric that was tuned.

    Example:
        >>> from fedbilevel import FedBiO
        >>> trials = tuple(
        ...     Trial(n, 0, {"upper_rate": 2.0**n}, {7: (1.0 - 0.1 * n,)})
        ...     for n in range(3)
        ... )
        >>> result = TuningResult(FedBiO(0.1), trials[2], trials[0], trials, {}, (0,))
        >>> len(tuning_picture(result).figure.axes)
        1
    """
    names = sorted(
        result.start.settings, key=lambda name: -result.importances.get(name, 0.0)
    )
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = blank(max(5.0, 3.5 * columns), 0.6 + 2.6 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        _draw(panel, result, goal, name)
        panel.set_title(_title(result, name), fontsize="medium")
    for row in panels:
        row[0].set_ylabel(title_of(goal.metric))
    for panel in list(panels.flat)[len(names) :]:
        panel.remove()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    caption = (
        "A dot is a trial, coloured by its number of rounds; × is a diverged trial. "
        "Percentages are importances: the influence of a setting on whether a trial is "
        "among the best tenth."
    )
    return Picture("tuning", "Importance of settings", caption, figure)


def _title(result: TuningResult, name: str) -> str:
    share = result.importances.get(name)
    # All names share this prefix.
    short = name.removeprefix("algorithm.")
    return short if share is None else f"{short} ({share:.0%})"


def _draw(panel: "Axes", result: TuningResult, goal: Goal, name: str) -> None:
    # A rate of 0 in the file cannot be shown on a logarithmic axis.
    trials = [trial for trial in result.trials if trial.settings[name] > 0]
    lengths = sorted({trial.rounds for trial in trials})
    finite = [trial for trial in trials if isfinite(trial.score)]
    for index, rounds in enumerate(lengths):
        equally_long = [trial for trial in finite if trial.rounds == rounds]
        panel.scatter(
            [trial.settings[name] for trial in equally_long],
            [goal.score(trial.score) for trial in equally_long],
            s=14,
            color=f"C{index}",
            label=count_noun(rounds, "round"),
        )
    # Other markers, so that both are visible in every panel.
    for trial, marker, label in (
        (result.start, "D", "start"),
        (result.best, "*", "best"),
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
    _label(panel, [trial.settings[name] for trial in trials])
    panel.grid(alpha=0.3)
    _fit(panel, finite, goal)
    diverged = [trial for trial in trials if not isfinite(trial.score)]
    if diverged:
        bottom, top = panel.get_ylim()
        panel.plot(
            [trial.settings[name] for trial in diverged],
            [bottom if goal.maximise else top] * len(diverged),
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
    # With one label per decade a narrow range may have no label.
    narrow = bool(values) and max(values) < 100 * min(values)
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if narrow else (1.0,)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())


def _fit(panel: "Axes", finite: list[Trial], goal: Goal) -> None:
    """Set limits that show most values: one near divergence would hide the others."""
    values = np.array([goal.score(trial.score) for trial in finite])
    if not len(values):
        return
    if spans_decades(values):
        panel.set_yscale("log")
        return
    low, high = np.quantile(
        values, (1 - VISIBLE, 1.0) if goal.maximise else (0, VISIBLE)
    )
    margin = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    panel.set_ylim(low - margin, high + margin)
