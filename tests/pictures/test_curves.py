"""Curves of a comparison: mean, band, failed seeds and panels."""

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedbilevel import Costs, FedBiO
from fedbilevel.experiments.groups import Group, SeedRun
from fedbilevel.experiments.run_directory.failures import Failure
from fedbilevel.experiments.schema import Experiment
from fedbilevel.pictures.curves import BAND, FAILED, Axis, caption, curves
from fedbilevel.tracking.records import Record

FAILURE = Failure(10, "no uploads")


def seed_run(values: list[float], failure: Failure | None = None) -> SeedRun:
    records = [
        Record(
            5 * n,
            0.5 * n,
            Costs(upper_samples=3 * n, exchanges=10 * n, bytes_up=n, bytes_down=n),
            {"loss": value, "accuracy": 1 - value},
        )
        for n, value in enumerate(values)
    ]
    return SeedRun(Path("runs/a"), Experiment(FedBiO(0.1)), records, failure)


def panel_of(*groups: Group):
    return curves(groups, ["loss"], [Axis.ROUNDS]).axes[0]


def legend_of(*groups: Group) -> list[str]:
    (legend,) = curves(groups, ["loss"], [Axis.ROUNDS]).legends
    return [text.get_text() for text in legend.get_texts()]


def test_mean_and_band_are_over_the_seeds_that_did_not_fail():
    runs = (
        seed_run([1.0, 0.8, 0.2]),
        seed_run([1.0, 9.0, 99.0], FAILURE),
        seed_run([1.0, 0.6, 0.4]),
    )
    panel = panel_of(Group("a", runs))
    mean, failed, mark = panel.lines
    expected = np.array([[0.0, 1.0], [5.0, 0.7], [10.0, 0.3]])
    np.testing.assert_allclose(mean.get_xydata(), expected)
    assert mean.get_linestyle() == "-"
    (band,) = panel.collections
    (corners,) = (path.vertices for path in band.get_paths())
    for rounds, low, high in ((0, 1, 1), (5, 0.6, 0.8), (10, 0.2, 0.4)):
        at = corners[corners[:, 0] == rounds, 1]
        np.testing.assert_allclose([at.min(), at.max()], [low, high])
    assert failed.get_linestyle() == "--"
    np.testing.assert_allclose(failed.get_ydata(), [1, 9, 99])
    assert to_hex(failed.get_color()) == to_hex(mean.get_color())
    assert mark.get_marker() == "x"


def test_a_failed_seed_does_not_flatten_the_others():
    runs = seed_run([1.0, 0.8, 0.2]), seed_run([1.0, 1e30, inf], FAILURE)
    panel = panel_of(Group("a", runs))
    low, high = panel.get_ylim()
    assert low < 0.2
    assert 1.0 < high < 1.1
    # Its end is marked at the edge, after the rounds of its last finite value.
    ((place, height),) = panel.lines[-1].get_xydata()
    assert place == 5
    assert height == pytest.approx(high)


def test_the_legend_counts_failed_seeds():
    fine, failed = seed_run([1.0, 0.5]), seed_run([1.0, nan], FAILURE)
    groups = Group("a", (fine, failed)), Group("b", (failed,)), Group("c", (fine,))
    assert legend_of(*groups) == [
        "a, 1 of 2 seeds failed",
        "b, 1 of 1 seed failed",
        "c",
    ]


def test_a_run_that_failed_before_its_first_record_is_in_the_legend():
    assert legend_of(Group("a", (seed_run([], FAILURE),))) == ["a, 1 of 1 seed failed"]


def test_where_all_fail_large_values_are_drawn_by_their_logarithm():
    panel = panel_of(Group("a", (seed_run([1.0, 1e5, 1e20], FAILURE),)))
    assert panel.get_yscale() == "log"


def test_the_caption_explains_what_is_there():
    fine, failed = seed_run([1.0]), seed_run([1.0], FAILURE)
    assert caption([Group("a", (fine,)), Group("b", (fine,))]) == ""
    assert caption([Group("a", (fine, fine))]) == BAND
    assert caption([Group("a", (fine, failed))]) == FAILED
    assert caption([Group("a", (fine, fine, failed))]) == f"{BAND} {FAILED}"
    picture = curves([Group("a", (fine, fine, failed))], ["loss"], [Axis.ROUNDS])
    drawn = picture.get_supxlabel()
    assert drawn is not None
    assert drawn.replace("\n", " ") == f"{BAND} {FAILED}"


def test_metrics_are_rows_and_costs_are_columns():
    axes = [Axis.EXCHANGES, Axis.SECONDS, Axis.SAMPLES]
    group = Group("a", (seed_run([1.0, 0.75]),))
    picture = curves([group], ["loss", "accuracy"], axes)
    assert len(picture.axes) == 6
    ends = np.array([np.array(one.lines[0].get_xydata())[-1] for one in picture.axes])
    np.testing.assert_allclose(ends[:, 0], np.array([10, 0.5, 3, 10, 0.5, 3]))
    np.testing.assert_allclose(ends[:, 1], np.repeat([0.75, 0.25], 3))
    assert [panel.get_xlabel() for panel in picture.axes[3:]] == [
        axis.label for axis in axes
    ]
    assert picture.axes[0].get_ylabel() == "validation loss"
    assert picture.axes[3].get_ylabel() == "accuracy"
