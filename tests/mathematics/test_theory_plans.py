"""Plans against the printed corollaries, the theorems' terms, and a run's costs."""

from dataclasses import replace
from math import ceil, log
from typing import Any

import numpy as np
import pytest

from fedbilevel import (
    CubeRootDecay,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    run,
    theory,
)
from fedbilevel.theory import LOCAL_BSGM_LAW, LOCAL_BSGVRM_LAW, Plan
from tests import quadratic
from tests.algorithms.table import at_night

# So large that rounding to whole numbers does not show.
COUNTS: dict[str, Any] = {"devices": 4, "steps": 10**12, "local_steps": 10**8}
ANCHORS = {
    "LocalBSGM": Plan(
        LOCAL_BSGM_LAW,
        accuracy=0.04,
        learning_rate=0.01,
        upper_mixing=1.0,
        lower_mixing=2.0,
        terms=10,
        **COUNTS,
    ),
    "LocalBSGVRM": Plan(
        LOCAL_BSGVRM_LAW,
        accuracy=0.04,
        learning_rate=0.01,
        upper_mixing=1.0,
        lower_mixing=2.0,
        terms=10,
        initial_batch_size=10**8,
        **COUNTS,
    ),
    "LocalBSGVRM, decaying": Plan(
        LOCAL_BSGVRM_LAW,
        accuracy=0.04,
        learning_rate=CubeRootDecay(0.1, plateau=10.0**6),
        upper_mixing=1.0,
        lower_mixing=2.0,
        terms=10,
        initial_batch_size=10**8,
        **COUNTS,
    ),
}
PLACES = [(4, 1.0), (8, 1.0), (4, 0.25), (32, 0.1), (2, 3.0)]


def settings(plan: Plan) -> np.ndarray:
    """Return T, p, η (or its scale and plateau), α, β and B."""
    rate = plan.learning_rate
    rates = [rate.scale, rate.plateau] if isinstance(rate, CubeRootDecay) else [rate]
    return np.array(
        [
            plan.steps,
            plan.local_steps,
            *map(float, rates),
            plan.upper_mixing,
            plan.lower_mixing,
            plan.initial_batch_size,
        ]
    )


def printed_by_accuracy(name: str, k: float, e: float) -> list[float]:
    """Return Corollaries 2 and 4, of factors k of K and e of ε."""
    return {
        "LocalBSGM": [1 / (k * e**2), 1 / (k * e**0.5), k * e, 1, 1, 1],
        "LocalBSGVRM": [
            1 / (k * e**1.5),
            1 / (k * e**0.5),
            k * e**0.5,
            1 / k,
            1 / k,
            1 / (k * e**0.5),
        ],
    }[name]


def printed_by_steps(name: str, k: float, t: float) -> list[float]:
    """Return Corollaries 1, 3 and 5, of factors k of K and t of T."""
    reduced = t ** (1 / 3) / k ** (2 / 3)
    return {
        "LocalBSGM": [t, t**0.25 / k**0.75, k**0.5 / t**0.5, 1, 1, 1],
        "LocalBSGVRM": [t, reduced, k ** (2 / 3) / t ** (1 / 3), 1 / k, 1 / k, reduced],
        # Theorem 3: η_t has the scale K^(2/3) / L̂ and the plateau 200³ K² p³.
        "LocalBSGVRM, decaying": [
            t,
            reduced,
            k ** (2 / 3),
            k**2 * reduced**3,
            1 / k,
            1 / k,
            reduced,
        ],
    }[name]


@pytest.mark.parametrize(("devices", "shrink"), PLACES)
@pytest.mark.parametrize("name", ["LocalBSGM", "LocalBSGVRM"])
def test_plans_for_an_accuracy_follow_corollaries_2_and_4(name, devices, shrink):
    anchor = ANCHORS[name]
    plan = theory.plan_for_accuracy(
        anchor, devices=devices, accuracy=anchor.accuracy * shrink, contraction=0.8
    )
    expected = printed_by_accuracy(name, devices / 4, shrink)
    np.testing.assert_allclose(settings(plan) / settings(anchor), expected, rtol=1e-6)
    assert (plan.law, plan.devices) == (anchor.law, devices)
    assert plan.accuracy == anchor.accuracy * shrink


@pytest.mark.parametrize(("devices", "longer"), PLACES)
@pytest.mark.parametrize("name", ANCHORS)
def test_plans_for_steps_follow_corollaries_1_3_and_5(name, devices, longer):
    anchor = ANCHORS[name]
    steps = round(anchor.steps * longer)
    plan = theory.plan_for_steps(anchor, devices=devices, steps=steps, contraction=0.8)
    expected = printed_by_steps(name, devices / 4, longer)
    np.testing.assert_allclose(settings(plan) / settings(anchor), expected, rtol=1e-6)
    assert plan.steps == steps
    factor = devices / 4 * longer
    rate = {
        "LocalBSGM": factor ** (-1 / 2),
        "LocalBSGVRM": factor ** (-2 / 3),
        "LocalBSGVRM, decaying": factor ** (-2 / 3)
        * log(steps + 1)
        / log(anchor.steps + 1),
    }[name]
    np.testing.assert_allclose(plan.accuracy / anchor.accuracy, rate, rtol=1e-9)


@pytest.mark.parametrize(("devices", "shrink"), PLACES)
def test_a_decaying_plan_for_an_accuracy_is_one_for_its_steps(devices, shrink):
    anchor = ANCHORS["LocalBSGVRM, decaying"]
    accuracy = anchor.accuracy * shrink
    plan = theory.plan_for_accuracy(
        anchor, devices=devices, accuracy=accuracy, contraction=0.8
    )
    same = theory.plan_for_steps(
        anchor, devices=devices, steps=plan.steps, contraction=0.8
    )
    np.testing.assert_allclose(same.accuracy, accuracy, rtol=1e-9)
    np.testing.assert_allclose(settings(same), settings(plan), rtol=1e-9)
    fixed = theory.plan_for_accuracy(
        ANCHORS["LocalBSGVRM"], devices=devices, accuracy=accuracy, contraction=0.8
    )
    # The logarithm requires more steps than a fixed rate if T grows, otherwise fewer.
    growth = np.sign(np.log(fixed.steps / anchor.steps))
    assert np.sign(round(np.log(plan.steps / fixed.steps), 6)) == growth


def test_very_inaccurate_decaying_plans_do_not_take_less_than_four_steps():
    anchor = replace(ANCHORS["LocalBSGVRM, decaying"], steps=100)
    plan = theory.plan_for_accuracy(anchor, devices=4, accuracy=1e3, contraction=0.8)
    assert plan.steps == 4


@pytest.mark.parametrize("name", ["LocalBSGM", "LocalBSGVRM"])
def test_every_term_of_the_bound_shrinks_with_the_accuracy(name):
    assumptions = theory.Assumptions(0.5, 3.0, 2.0, 1.25, 2.0, 1.5)
    series = NeumannSeries(terms=10, scale=0.25)
    ceilings: Any = theory.local_bsgm_ceilings
    bound: Any = theory.local_bsgm_bound
    mixing: dict[str, Any] = {"upper_mixing": 0.5, "lower_mixing": 0.25}
    devices, opening = {}, {}
    if name == "LocalBSGVRM":
        ceilings, bound = theory.local_bsgvrm_ceilings, theory.local_bsgvrm_bound
        devices, opening = {"devices": 4}, {"initial_batch_size": 10**6}
    allowed = ceilings(assumptions, series, **mixing, local_steps=1000, **devices)

    def terms(plan: Plan) -> theory.Bound:
        # The series is constant here; its term is checked separately below.
        value: theory.Bound = bound(
            assumptions,
            series,
            theory.Start(1.0, 1.0),
            upper_rate=allowed.upper_rate,
            lower_rate=allowed.lower_rate,
            learning_rate=plan.learning_rate,
            upper_mixing=plan.upper_mixing,
            lower_mixing=plan.lower_mixing,
            local_steps=plan.local_steps,
            devices=plan.devices,
            steps=plan.steps,
            **{setting: getattr(plan, setting) for setting in opening},
        )
        return value

    anchor = Plan(
        ANCHORS[name].law,
        devices=4,
        accuracy=0.1,
        steps=10**8,
        local_steps=1000,
        learning_rate=allowed.learning_rate,
        terms=10,
        **mixing,
        **opening,
    )
    shrink, contraction = 1 / 16, 1 - 0.25 * 0.5
    plan = theory.plan_for_accuracy(
        anchor, devices=8, accuracy=0.1 * shrink, contraction=contraction
    )
    ratios = np.array(terms(plan)) / np.array(terms(anchor))
    np.testing.assert_allclose(ratios[:6], shrink, rtol=1e-6)
    # The fourth powers in Theorem 1's drift shrink still faster.
    assert np.all(ratios[7:] <= shrink * (1 + 1e-9))
    longer, shorter = (NeumannSeries(plan.terms - less, 0.25) for less in (0, 1))
    target = theory.series_bias(assumptions, series) ** 2 * shrink
    assert theory.series_bias(assumptions, longer) ** 2 <= target
    assert theory.series_bias(assumptions, shorter) ** 2 > target


@pytest.mark.nightly
@pytest.mark.parametrize("make", [LocalBSGM, *at_night(LocalBSGVRM)])
def test_rounds_and_samples_are_those_that_a_run_counts(make):
    extra = {"initial_batch_size": 7} if make is LocalBSGVRM else {}
    law = LOCAL_BSGVRM_LAW if make is LocalBSGVRM else LOCAL_BSGM_LAW
    shared: dict[str, Any] = {
        "learning_rate": 0.1,
        "upper_mixing": 1.0,
        "lower_mixing": 1.0,
        "local_steps": 4,
        "batch_size": 3,
        **extra,
    }
    plan = Plan(law, devices=3, accuracy=1.0, steps=10, terms=2, **shared)
    algorithm = make(hypergradient=NeumannSeries(plan.terms, 0.1), **shared)
    devices = InMemoryDevices(quadratic.devices(3, 5, 0.1))
    x, y = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)
    *_, last = run(quadratic.problem(), algorithm, devices, x, y, rounds=plan.rounds)
    assert last.server.step == 12
    assert plan.samples == last.costs.samples
    assert plan.rounds == ceil(10 / 4) == last.costs.exchanges


SMALL = replace(ANCHORS["LocalBSGM"], steps=100, local_steps=3, learning_rate=0.25)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: theory.plan_for_accuracy(
                SMALL, devices=16, accuracy=0.04, contraction=0.8
            ),
            "local_steps would fall from 3 to 0.75",
        ),
        (
            lambda: theory.plan_for_accuracy(
                SMALL, devices=12, accuracy=0.04, contraction=0.8
            ),
            "lower_mixing · learning_rate would be 1.5",
        ),
        (
            lambda: theory.plan_for_steps(SMALL, devices=4, steps=100, contraction=1.0),
            "contraction",
        ),
        (
            lambda: theory.plan_for_steps(SMALL, devices=0, steps=9, contraction=0.8),
            "devices is 0, expected above 0",
        ),
        (
            lambda: theory.plan_for_accuracy(
                SMALL, devices=4, accuracy=-1.0, contraction=0.8
            ),
            "accuracy is -1.0, expected above 0",
        ),
        (lambda: replace(SMALL, accuracy=0.0), "accuracy is 0.0, expected above 0"),
        (lambda: replace(SMALL, steps=0), "steps is 0, expected above 0"),
        (lambda: replace(SMALL, learning_rate=CubeRootDecay(0.1)), "decaying"),
        (
            lambda: replace(
                SMALL, law=LOCAL_BSGVRM_LAW, learning_rate=CubeRootDecay(2.0)
            ),
            "upper_mixing · learning_rate\\^2",
        ),
    ],
)
def test_impossible_plans_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
