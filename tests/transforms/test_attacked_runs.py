"""Runs on the heterogeneous quadratic with bad devices, beside the exact x*."""

from typing import Any

import numpy as np
import pytest

from fedbilevel import (
    Clip,
    GeometricMedian,
    NoUploadsError,
    TrimmedMean,
    run,
    with_transforms,
)
from tests.transforms import attacks
from tests.transforms.attacked_runs import BAD, MEANS, Case, Column, under
from tests.transforms.tables import ATTACKS, DEVICES

pytestmark = pytest.mark.slow

SIGN_FLIP = attacks.sign_flip


def distance(attack: Any, bad: int, *transforms: Any) -> float:
    """Return the last distance from x* of a run; infinite if the run stops."""
    case, algorithm = Case.of(bad, seed=0), under(attack, bad, transforms)
    task = case.task
    inputs = task.problem, algorithm, task.devices, task.x, task.y
    try:
        *_, last = run(*inputs, rounds=300, every=300)
    except NoUploadsError:
        return float("inf")
    return case.distance(np.asarray(last.x))


@pytest.mark.nightly
def test_without_bad_devices_the_plain_mean_reaches_the_solution():
    case, algorithm = Case.of(0, seed=0), under(SIGN_FLIP, 0, ())
    task = case.task
    results = run(
        task.problem, algorithm, task.devices, task.x, task.y, rounds=500, every=250
    )
    own = run(
        task.problem,
        with_transforms(algorithm.algorithm.algorithm, Clip(1e9)),
        task.devices,
        task.x,
        task.y,
        rounds=500,
        every=250,
    )
    for one, other in zip(results, own, strict=True):
        np.testing.assert_allclose(one.x, other.x, rtol=0, atol=1e-12)
    assert case.distance(np.asarray(one.x)) < 1e-8


def test_scaled_updates_move_the_plain_mean_alone():
    assert distance(attacks.scaled, 4) > 1e3
    assert distance(attacks.scaled, 4, Clip(0.3)) < 1
    assert distance(attacks.scaled, 4, TrimmedMean(0.2)) < 0.5


@pytest.mark.nightly
def test_a_robust_mean_is_biased_without_bad_devices():
    """It ignores rare updates, which heterogeneous devices honestly send."""
    biased = distance(SIGN_FLIP, 0, GeometricMedian())
    assert 0.01 < biased < 0.5


@pytest.mark.nightly
def test_table_of_the_documentation():
    table = {name: Column.of(settings) for name, settings in MEANS.items()}
    scaled = list(ATTACKS).index("scaled by 1,000")
    for bad in BAD[1:]:
        share = bad / DEVICES
        assert np.isinf(table["plain"].distances[bad][:, scaled]).all()
        for name in ("clip", "median", "centred"):
            assert table[name].distances[bad][:, scaled].max() < 0.5
        (trimmed,) = table["trimmed"].setting
        is_bounded = np.isfinite(table["trimmed"].distances[bad][:, scaled]).all()
        assert is_bounded == (share <= trimmed.share)
    for name, column in table.items():
        honest = np.median(column.distances[0])
        assert honest < 1e-6 if name == "plain" else 0.05 < honest < 0.2
        # Inner products change the length of the mean but hardly its zero.
        ipm = np.median(column.distances[6][:, list(ATTACKS).index("IPM")])
        assert ipm < 1e-3 if name == "plain" else ipm > 0.05
