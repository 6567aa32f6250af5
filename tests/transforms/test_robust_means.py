"""Robust means against byzfl, closed forms, bounds of theory and attacks."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import optimize, stats

from fedbilevel.engines.mean import stacked_mean
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.transforms.protocol import RobustMean
from fedbilevel.transforms.robust_means import (
    CentredClipping,
    GeometricMedian,
    TrimmedMean,
    weighted_bounds,
    weiszfeld_step,
)
from tests.algorithms.table import at_night
from tests.transforms import attacks, tables
from tests.transforms.byzfl_values import VALUES
from tests.transforms.tables import apply, attacked, flat, mean_of, norms, tree

pytestmark = pytest.mark.slow


REFERENCE = json.loads(VALUES.read_text())
MEANS: dict[str, RobustMean] = {
    "trimmed": TrimmedMean(0.2),
    "median": GeometricMedian(steps=8),
    "centred": CentredClipping(2.0, steps=3),
}
UNBOUNDED = {
    "sign flip": attacks.sign_flip,
    "IPM": attacks.inner_product_manipulation,
    "scaled": attacks.scaled,
}
every_mean = pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)


def equivalent(name: str, settings: dict[str, Any], rows: Any) -> RobustMean:
    """Return the robust mean for the settings of byzfl."""
    if name == "TrMean":
        return partial(apply, TrimmedMean(settings["f"] / len(rows)))
    if name == "GeometricMedian":
        return partial(fixed_smoothing, settings["T"], settings["nu"])
    return partial(apply, CentredClipping(settings["tau"], settings["L"]))


def fixed_smoothing(
    steps: int, smoothing: float, updates: Any, weights: Any, idle: Any
) -> Any:
    """Return Weiszfeld's steps as byzfl takes them: from `idle`, with an absolute ν."""
    for _ in range(steps):
        idle = weiszfeld_step(updates, weights, idle, lambda lengths: smoothing)
    return idle


def random_rows(devices: int, coordinates: int = 7, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(devices, coordinates))


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: case["name"])
def test_equal_to_byzfl(case):
    rows = np.array(REFERENCE["inputs"][case["input"]])
    if case["name"] == "ALittleIsEnough":
        values = attacks.a_little_is_enough(rows, rows[:1], case["settings"]["tau"])[0]
    elif case["name"] == "InnerProductManipulation":
        values = attacks.inner_product_manipulation(
            rows, rows[:1], case["settings"]["tau"]
        )[0]
    else:
        mean = equivalent(case["name"], case["settings"], rows)
        idle = jnp.zeros(rows.shape[1] - 1), jnp.zeros(1)
        updates = jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, -1:])
        values = np.concatenate(mean(updates, jnp.ones(len(rows)), idle))
    np.testing.assert_allclose(values, case["output"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("devices", "cut"), [(10, 4), (11, 3), (7, 0), (10, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_classic_trimmed_mean(devices, cut, dtype):
    rows = random_rows(devices).astype(dtype)
    rows[:cut] *= dtype(1e30)
    share = cut / devices
    trimmed = mean_of(TrimmedMean(share), rows, np.ones(devices, dtype))
    # SciPy rounds the number of values down.
    classic = stats.trim_mean(rows.astype(np.float64), share + 1e-9, axis=0)
    np.testing.assert_allclose(trimmed, classic, rtol=0, atol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.237, 0.4, 0.49])
def test_weighted_trimmed_mean_is_an_integral_of_the_quantile_function(share):
    rows = random_rows(9)
    weights = np.random.default_rng(1).uniform(0, 3, size=9)
    order = np.argsort(rows, axis=0)
    ends = np.cumsum(weights[order], axis=0) / weights.sum()
    starts = ends - weights[order] / weights.sum()
    parts = np.clip(ends, share, 1 - share) - np.clip(starts, share, 1 - share)
    integral = np.sum(parts * np.take_along_axis(rows, order, axis=0), axis=0)
    np.testing.assert_allclose(
        mean_of(TrimmedMean(share), rows, weights),
        integral / (1 - 2 * share),
        atol=1e-11,
    )


def test_bounds_are_values_at_shares():
    values = jnp.array([[3.0, -0.0], [-1e300, 1e-310], [2.0, -5.0], [7.0, 0.5]])
    low, high = weighted_bounds(values, jnp.array([1.0, 1.0, 2.0, 1.0]), 0.25)
    np.testing.assert_array_equal(low, [2.0, -5.0])
    np.testing.assert_array_equal(high, [3.0, 1e-310])


def test_median_minimises_the_sum_of_distances():
    rows = random_rows(8, coordinates=5)
    weights = np.random.default_rng(1).uniform(0.5, 2, size=8)
    minimum = optimize.minimize(
        lambda point: weights @ norms(rows - point), np.zeros(5), tol=1e-12
    )
    median = mean_of(GeometricMedian(300, smoothing=1e-6), rows, weights)
    np.testing.assert_allclose(median, minimum.x, atol=1e-6)


@pytest.mark.parametrize("share", [0.4, *at_night(0.1, 0.25)])
@pytest.mark.parametrize("length", [1e4, *at_night(1e2, 1e6)])
def test_the_bound_of_the_median_holds_where_honest_devices_agree(length, share):
    """Updates of 10² to 10⁶ spreads; the point of the bound is the honest mean."""
    bad = round(20 * share)
    honest = random_rows(20 - bad, coordinates=12) + length
    centre = honest.mean(axis=0)
    radius = norms(honest - centre).max()
    side = np.eye(12)[0]
    bound = (1 - share) / np.sqrt(1 - 2 * share)
    for attack in (-30 * centre, 0 * centre, centre + 10 * radius * side, 1e6 * centre):
        rows = np.concatenate([honest, np.tile(attack, (bad, 1))])
        median = mean_of(GeometricMedian(), rows)
        assert np.linalg.norm(median - centre) <= bound * radius
    # A number of 10⁶ spreads has 4 digits of the spread in single precision.
    if length < 1e6:
        rows = rows.astype(np.float32)
        median = mean_of(GeometricMedian(), rows, np.ones(20, np.float32))
        assert np.linalg.norm(median - centre) <= bound * radius


def test_default_steps_suffice_far_from_idle():
    rows = random_rows(20) + 30
    rows[:8] = -10
    exact = mean_of(GeometricMedian(1000), rows)
    spread = norms(rows[8:] - rows[8:].mean(axis=0)).max()
    assert np.linalg.norm(mean_of(GeometricMedian(), rows) - exact) < 1e-4 * spread


def test_centred_clipping_without_clipping_is_the_mean():
    rows = random_rows(6)
    weights = np.arange(1.0, 7)
    clipping = mean_of(CentredClipping(1e9), rows, weights)
    np.testing.assert_allclose(clipping, mean_of(None, rows, weights), atol=1e-14)


def test_centred_clipping_of_one_step_is_the_mean_of_clipped_updates():
    rows, weights = random_rows(6), np.arange(1.0, 7)
    clipped = mean_of(None, tables.clipped(rows, 1.5), weights)
    centred = mean_of(CentredClipping(1.5), rows, weights)
    np.testing.assert_allclose(centred, clipped, atol=1e-14)


def test_centred_clipping_moves_at_most_a_radius():
    rows = 1e30 * random_rows(6)
    moved = np.linalg.norm(mean_of(CentredClipping(0.5, steps=3), rows))
    assert moved <= 3 * 0.5


@every_mean
def test_weights_count_devices(mean):
    rows = random_rows(6)
    weights = np.array([2.0, 1, 1, 3, 1, 1])
    replicated = np.repeat(rows, weights.astype(int), axis=0)
    np.testing.assert_allclose(
        mean_of(mean, rows, 0.37 * weights), mean_of(mean, replicated), atol=1e-12
    )


@every_mean
def test_order_of_devices_is_irrelevant(mean):
    rows = random_rows(9)
    weights = np.random.default_rng(1).uniform(size=9)
    order = np.random.default_rng(2).permutation(9)
    np.testing.assert_allclose(
        mean_of(mean, rows[order], weights[order]),
        mean_of(mean, rows, weights),
        atol=1e-12,
    )


@every_mean
def test_translation_moves_the_mean_with_idle(mean):
    rows, shift = random_rows(9), 5 * random_rows(1)[0]
    weights = jnp.ones(9)
    moved = apply(mean, tree(rows + shift), weights, tree(shift))
    original = apply(mean, tree(rows), weights, tree(np.zeros(7)))
    np.testing.assert_allclose(flat(moved), flat(original) + shift, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_mean
def test_tiny_and_huge_updates(mean, factor, dtype):
    rows = random_rows(9).astype(dtype)
    rows[0] *= 1e7
    weights = np.ones(9, dtype)
    scaled = mean
    if isinstance(mean, CentredClipping):
        scaled = CentredClipping(mean.radius * factor, mean.steps)
    np.testing.assert_allclose(
        mean_of(scaled, dtype(factor) * rows, weights) / dtype(factor),
        mean_of(mean, rows, weights),
        rtol=0,
        atol=100 * np.finfo(dtype).eps,
    )


@every_mean
def test_absent_devices_have_no_influence(mean):
    rows = random_rows(9)
    rows[2], rows[5] = np.nan, np.inf
    weights = np.ones(9)
    weights[[2, 5]] = 0
    left = np.delete(rows, [2, 5], axis=0)
    np.testing.assert_allclose(
        mean_of(mean, rows, weights), mean_of(mean, left), atol=1e-13
    )

    def size(rows: Any, weights: Any) -> Any:
        (mean_row,) = apply(mean, (rows,), weights, (jnp.zeros(7),))
        return jnp.sum(mean_row**2)

    gradients = jax.grad(size, (0, 1))(jnp.asarray(rows), jnp.asarray(weights))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][jnp.array([2, 5])], 0)


@every_mean
def test_without_any_weight_the_mean_is_idle(mean):
    rows = np.full((3, 7), np.nan)
    idle = tree(np.arange(7.0))
    update = apply(mean, tree(rows), jnp.zeros(3), idle)
    np.testing.assert_array_equal(flat(update), np.arange(7.0))


@every_mean
def test_one_device_and_equal_devices(mean):
    rows = np.tile(random_rows(1, 7) / 10, (4, 1))
    for count in (1, 4):
        np.testing.assert_allclose(mean_of(mean, rows[:count]), rows[0], rtol=1e-12)
    np.testing.assert_array_equal(mean_of(mean, 0 * rows), 0)


def test_no_variables():
    for mean in MEANS.values():
        assert mean((), jnp.ones(3), ()) == ()


@pytest.mark.parametrize("share", [0.49999, 0.5 - 1e-12])
def test_largest_share_is_a_median(share):
    rows = random_rows(5)
    np.testing.assert_allclose(
        mean_of(TrimmedMean(share), rows), np.median(rows, axis=0), atol=1e-13
    )


@pytest.mark.nightly
@every_mean
def test_dtypes_are_those_of_the_plain_mean(mean):
    dtypes = jnp.bfloat16, jnp.float32, jnp.float64
    for weight in (jnp.float32, jnp.float64):
        updates = tuple(jnp.ones((3, 2), dtype) for dtype in dtypes)
        idle = tuple(np.zeros(2, dtype) for dtype in dtypes)
        weights = jnp.ones(3, weight)
        plain = stacked_mean(updates, {}, weights).upload
        robust = apply(mean, updates, weights, idle)
        assert [leaf.dtype for leaf in robust] == [leaf.dtype for leaf in plain]
        assert all(np.allclose(leaf, 1, atol=1e-6) for leaf in robust)


@pytest.mark.single_precision
@every_mean
def test_single_precision(mean):
    rows = random_rows(9).astype(np.float32)
    with jax.enable_x64(True):
        exact = mean_of(mean, rows.astype(np.float64))
    single = mean_of(mean, rows, np.ones(9, np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=2e-6)


@pytest.mark.nightly
@every_mean
def test_derivatives(mean):
    rows = random_rows(5, coordinates=3)
    weights = np.random.default_rng(1).uniform(0.5, 1, size=5)
    if isinstance(mean, GeometricMedian):
        mean = GeometricMedian(steps=60)  # Its start has no derivative.

    def function(mean: RobustMean, rows: Any, weights: Any) -> Any:
        return mean((rows[:, :1], rows[:, 1:]), weights, (jnp.zeros(1), jnp.zeros(2)))

    mean = jax.tree.map(jnp.asarray, mean)
    # Differences of second order at steps of 1e-5 have about 8 correct digits.
    check_grads(
        jax.jit(function),
        (mean, jnp.asarray(rows), jnp.asarray(weights)),
        order=1,
        atol=1e-6,
        rtol=1e-6,
        eps=1e-5,
        modes=("rev",),
    )


@every_mean
def test_derivatives_are_finite_where_devices_coincide(mean):
    def size(rows: Any) -> Any:
        idle = (jnp.zeros(3),)
        return jnp.sum(apply(mean, (rows,), jnp.ones(4), idle)[0] ** 2)

    for rows in (jnp.zeros((4, 3)), jnp.ones((4, 3))):
        assert np.isfinite(jax.grad(size)(rows)).all()


@every_mean
def test_settings_can_be_swept(mean):
    rows, idle = tree(random_rows(9)), tree(np.zeros(7))
    factors = 1.0, 0.5, 0.25
    settings = [jax.tree.map(lambda leaf, f=f: f * leaf, mean) for f in factors]
    stacked = jax.tree.map(lambda *leaves: jnp.array(leaves), *settings)
    means = jax.vmap(apply, (0, None, None, None))(stacked, rows, jnp.ones(9), idle)
    for index, setting in enumerate(settings):
        np.testing.assert_allclose(
            flat(jax.tree.map(lambda leaf, i=index: leaf[i], means)),
            flat(apply(setting, rows, jnp.ones(9), idle)),
            atol=1e-13,
        )


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: TrimmedMean(0.5), "share is 0.5"),
        (lambda: TrimmedMean(-0.1), "share is -0.1"),
        (lambda: GeometricMedian(steps=0), "steps is 0"),
        (lambda: GeometricMedian(smoothing=0.0), "smoothing is 0.0"),
        (lambda: CentredClipping(0.0), "radius is 0.0"),
    ],
)
def test_wrong_settings(build, name):
    with pytest.raises(SettingError, match=name):
        build()


def assert_within_bounds(case: tables.Case, dtype: Any = np.float64) -> None:
    """Check the bounds of theory, for any updates of bad devices.

    Let α be the bad devices' share, m and r the honest mean and the largest honest
    distance from it, and D the distance of m from `idle`.
    """
    rows = case.rows.astype(dtype)
    weights = np.ones(len(rows), dtype)
    centre = case.honest.mean(axis=0)
    spread, offset = case.spread, case.offset
    share = len(case.bad) / len(rows)
    rounding = 20 * np.finfo(dtype).eps

    trimmed = mean_of(TrimmedMean(share), rows, weights)
    assert (trimmed >= case.honest.min(axis=0) - rounding).all()
    assert (trimmed <= case.honest.max(axis=0) + rounding).all()

    # Minsker 2015, Lemma 2.1.
    median = mean_of(GeometricMedian(), rows, weights)
    bound = spread * (1 - share) / np.sqrt(1 - 2 * share)
    assert np.linalg.norm(median - centre) <= bound

    # With a radius that clips no honest device, the honest devices' part of v + Σ … is
    # αv + (1 − α)m and a bad device adds at most the radius: the distance e from m
    # becomes at most α(e + radius).
    radius = max(3 * spread, offset + spread)
    distance = offset
    for steps in range(1, 5):
        distance = share * (distance + radius)
        centred = mean_of(CentredClipping(radius, steps), rows, weights)
        assert np.linalg.norm(centred - centre) <= distance * (1 + rounding)


@pytest.mark.parametrize("share", tables.SHARES)
@pytest.mark.parametrize("attack", tables.ATTACKS.values(), ids=tables.ATTACKS)
def test_attacks_are_bounded(attack, share):
    assert_within_bounds(attacked(attack, share, seed=3))


@pytest.mark.parametrize("share", tables.SHARES)
@pytest.mark.parametrize("attack", UNBOUNDED.values(), ids=UNBOUNDED)
def test_strong_attacks_move_the_plain_mean_alone(attack, share):
    for strength in (1e3, 1e6):
        case = attacked(attack, share, seed=4, strength=strength)
        assert_within_bounds(case)
        plain = mean_of(None, case.rows) - case.honest.mean(axis=0)
        assert np.linalg.norm(plain) > 0.01 * share * strength * case.spread


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_breakdown_at_40_percent(sign, dtype):
    honest = attacked(attacks.scaled, 0.4).honest
    bad = np.full((8, honest.shape[1]), sign * 1e30)
    assert_within_bounds(tables.Case(honest, bad), dtype)
    assert abs(mean_of(None, np.concatenate([honest, bad]))).min() > 1e29


def test_attack_table():
    table = tables.attack_table()
    for name, share in table:
        plain, *robust = table[name, share].values()
        assert max(robust) < 0.75
        if name.startswith("scaled"):
            assert plain > 500 * share
        # Attacks within the honest spread bound even the plain mean.
        if name == "ALIE":
            assert plain < 0.25


def test_small_site_moves_the_plain_mean_alone():
    plain, *robust = tables.small_site_table().values()
    assert plain > 5
    assert max(robust) < 0.02


def test_a_little_is_enough_leaves_supporters():
    # With 50 devices and 24 bad ones, 2 of 26 honest ones must be beyond the attack.
    assert attacks.largest_deviations(26, 24) == pytest.approx(stats.norm.ppf(24 / 26))
