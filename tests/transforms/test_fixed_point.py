"""Fixed-point numbers: unbiased levels, exact sums, and devices that are excluded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    Clip,
    FedBiO,
    FixedPoint,
    InMemoryDevices,
    LocalExamples,
    run,
    with_transforms,
)
from fedbilevel.algorithms import Aggregation
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import stacked_mean
from fedbilevel.engines.screening import acceptable, is_acceptable
from fedbilevel.engines.whole_shares import SHARE_UNITS, check_sums, whole_shares
from fedbilevel.federation.streaming_mean import RunningMean
from fedbilevel.transforms.fixed_point import NOT_FINITE, mark_unless_finite
from tests.federation.secure_federation import CLIP, PROBLEM, START, STATEFUL, held

SUM = Aggregation(is_sum=True)


@pytest.mark.slow
def test_levels_are_unbiased_and_next_to_the_number():
    fixed, reach = FixedPoint(bits=5), 2.0
    numbers = np.linspace(-2.0, 2.0, 41)
    keys = jax.random.split(jax.random.key(0), 4000)
    levels = jax.vmap(lambda key: fixed.levels(jnp.asarray(numbers), reach, key))(keys)
    units = np.asarray(levels) - numbers / (reach / 15)
    assert np.max(np.abs(units)) < 1 + 1e-9
    # Five standard errors of a number in (0, 1), plus half of the dither's steps.
    assert np.max(np.abs(units.mean(axis=0))) < 5 * 0.5 / np.sqrt(4000) + 2.0**-17
    values = fixed.values(levels[0], 1, reach)
    np.testing.assert_allclose(values, np.asarray(levels[0]) * reach / 15, rtol=1e-15)


def test_numbers_beyond_the_reach_get_the_largest_level():
    levels = FixedPoint(8).levels(jnp.array([9.0, -1e30]), 1.0, jax.random.key(0))
    assert levels.tolist() == [127, -127]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_marked_and_excluded(bad):
    marked = mark_unless_finite(
        (jnp.zeros(2, jnp.int32), jnp.ones((), jnp.int32)), jnp.array([0.0, bad])
    )
    assert all(np.all(leaf == NOT_FINITE) for leaf in marked)
    assert not is_acceptable(marked, {}, Limits())
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.zeros_like(leaf)]), marked)
    assert acceptable(stacked, {}, jnp.array([True, True]), Limits()).tolist() == [
        False,
        True,
    ]


def test_sums_are_exact_in_any_order_and_cannot_wrap():
    """The largest sum is of 65,536 devices with one unit and the largest level each."""
    largest = FixedPoint(16).largest_level
    assert largest * 2**16 < 2**31
    draw = np.random.default_rng(0)
    weights = draw.dirichlet(np.ones(40))
    levels = draw.integers(-largest, largest, (40, 300), np.int32, endpoint=True)
    levels[0] = NOT_FINITE
    weights[0] = 0.0  # excluded
    shares = [round(weight * SHARE_UNITS) for weight in weights.tolist()]
    # In Python's own integers.
    expected = [
        sum(share * level for share, level in zip(shares, column, strict=True))
        for column in levels.T.tolist()
    ]
    mean = stacked_mean(jnp.asarray(levels), {}, weights, aggregation=SUM)
    assert mean.total.tolist() == expected
    streaming = RunningMean(jax.ShapeDtypeStruct((300,), np.int32), {}, SUM)
    for device in draw.permutation(np.arange(1, 40)):
        streaming.add(levels[device], {}, weights[device])
    assert streaming.value.total.tolist() == expected
    assert whole_shares(np, weights).tolist() == shares


def test_65536_equal_devices_have_one_unit_each():
    """Half a unit, rounded to an even number, would be 0: no device would count."""
    count, algorithm = 2**16, with_transforms(FedBiO(0.1), Clip(1.0), FixedPoint())
    largest = FixedPoint(16).largest_level
    for weight in (1.0, 0.1):
        weights = np.full(count, weight)
        check_sums(algorithm, weights, count)
        shares = weights / weights.sum()
        for library, dtype in ((np, np.float64), (jnp, np.float32)):
            whole = whole_shares(library, library.asarray(shares, dtype))
            assert int(whole.sum()) == count
    levels = jnp.full((count, 1), largest)
    mean = stacked_mean(levels, {}, shares, aggregation=SUM)
    assert mean.total.tolist() == [largest * count]  # below 2³¹
    with pytest.raises(ValueError, match=r"smallest weight is 1\.53e-05"):
        check_sums(algorithm, np.ones(count + 1), count + 1)


@pytest.mark.slow
def test_a_device_whose_update_is_not_finite_has_no_part_in_the_mean():
    algorithm = with_transforms(STATEFUL, Clip(CLIP), FixedPoint())
    wrong = LocalExamples(np.full((4, 3), np.nan), np.full((6, 3), np.nan))
    several = InMemoryDevices([held(0), wrong, held(2)])
    weights = np.array([1.0, 1.0, 1.0])
    (result,) = run(PROBLEM, algorithm, several, *START, rounds=1, weights=weights)
    assert result.reports[0].contributors.tolist() == [0, 2]
    absent = np.array([1.0, 0.0, 1.0])
    (expected,) = run(PROBLEM, algorithm, several, *START, rounds=1, weights=absent)
    # Shares are of 2⁻¹⁵ of all participants, and equal in both runs.
    np.testing.assert_allclose(result.x, expected.x, rtol=0, atol=1e-12)


def test_a_weight_below_half_a_unit_is_refused():
    algorithm = with_transforms(FedBiO(0.1), Clip(1.0), FixedPoint())
    devices = InMemoryDevices([held(0), held(1)])
    with pytest.raises(
        ValueError, match=r"smallest weight is 1e-06 .* Raise this weight"
    ):
        list(
            run(
                PROBLEM,
                algorithm,
                devices,
                *START,
                rounds=1,
                weights=np.array([1, 1e-6]),
            )
        )


@pytest.mark.parametrize("bits", [1, 17, 8.5])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises((TypeError, ValueError), match="bits"):
        FixedPoint(bits)
