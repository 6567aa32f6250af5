"""Tests of the tables of traffic, and of the published values."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import experiment, traffic
from fedbilevel import Download

TASK = "regularisation-adult"
SETTING = traffic.FULL._replace(tasks=(TASK,))


def make_cell(values, up, down=100):
    return {"rounds": 5, "metrics": list(values), "up": up, "down": down}


def make_results(**codes):
    names = {"plain": traffic.NONE, "coded": "8 bits", "down": "8 bits down"}
    return {
        traffic.key_of(TASK, "auto", names[name]): cell for name, cell in codes.items()
    }


PLAIN = [0.8, 0.82, 0.84, 0.82]


@pytest.mark.parametrize(
    ("values", "place"),
    [
        (PLAIN, "inside"),
        ([0.81, 0.82, 0.81, 0.82], "inside"),
        ([0.79, 0.79, 0.8, 0.79], "below"),
        ([0.85, 0.86, 0.85, 0.86], "above"),
        ([0.9, 0.9, 0.9, float("nan")], "below"),
    ],
)
def test_a_code_is_compared_with_the_interval_of_the_plain_runs(values, place):
    results = make_results(plain=make_cell(PLAIN, 100), coded=make_cell(values, 10))
    _, row = traffic.rows_of(results, SETTING)
    assert row.place == place
    # Independently: Student's interval by SciPy, which has the mean of `values` or not.
    low, high = stats.t.interval(0.95, 3, np.mean(PLAIN), stats.sem(PLAIN))
    assert (low <= np.mean(values) <= high) == (place == "inside")


def test_a_row_has_the_ratios_of_bytes_and_the_paired_difference():
    coded = [value - 0.01 for value in PLAIN]
    results = make_results(plain=make_cell(PLAIN, 100), down=make_cell(coded, 20, 25))
    _, row = traffic.rows_of(results, SETTING)
    entries = dict(zip(traffic.HEADER, row.entries, strict=True))
    assert (entries["fewer_up"], entries["fewer_down"]) == (5, 4)
    assert entries["fewer"] == pytest.approx(200 / 45)
    assert entries["difference"] == pytest.approx(-0.01)
    assert entries["difference_half_width"] == pytest.approx(0, abs=1e-12)
    header, ((_, first), (code, second)) = traffic.summary([_, row], TASK)
    assert header == ["code", "auto"]
    assert first == "0.8200 ± 0.0260; 1 / 1 / 1"
    assert (code, second) == ("8 bits down", "0.8100 ± 0.0260; 5 / 4 / 4.44")


def test_a_seed_that_diverges_is_counted_and_its_row_stays():
    coded = [0.82, float("nan"), 0.8, 0.81]
    results = make_results(plain=make_cell(PLAIN, 100), coded=make_cell(coded, 10))
    _, row = traffic.rows_of(results, SETTING)
    entries: dict[str, Any] = dict(zip(traffic.HEADER, row.entries, strict=True))
    assert entries["failed"] == 1
    assert np.isnan(entries["mean"])
    assert "▼" in traffic.summary([row], TASK)[1][0][1]


def test_names_state_what_is_coded():
    for name, transforms in traffic.CODES.items():
        assert ("down" in name) == any(isinstance(t, Download) for t in transforms)


def test_the_published_table_is_that_of_the_published_cells(tmp_path):
    results = experiment.published_cells(traffic.PUBLISHED)
    traffic.report(results, traffic.FULL, tmp_path)
    for file in sorted(tmp_path.iterdir()):
        assert file.read_text() == (experiment.RESULTS / file.name).read_text()
