"""The searched settings and their ranges."""

from typing import Any

import optax
import pytest

from fedbilevel import (
    AutoFedBiO,
    CubeRootDecay,
    FedBiO,
    FedBiOAcc,
    FedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Setting,
    SimFBO,
    optax_optimiser,
    search_space,
    with_server_optimiser,
)
from fedbilevel.metrics.probes import Probes

SERIES = NeumannSeries(5, 0.25)


def ranges(algorithm, curvature=2.0, steps=100):
    space = search_space(algorithm, curvature=curvature, steps=steps)
    return {item.name: (item.low, item.high) for item in space.settings}


def test_rates_of_y_and_z_are_in_units_of_one_over_the_curvature():
    actual = ranges(FedBiO(0.5), curvature=4.0)
    assert list(actual) == ["upper_rate", "lower_rate", "adjoint_rate"]
    # learning_rate · lower_rate from 0.03 / L to 2 / L.
    assert actual["lower_rate"] == pytest.approx((0.015, 1.0))
    assert actual["adjoint_rate"] == pytest.approx((0.015, 1.0))
    assert actual["upper_rate"] == pytest.approx((0.01, 100.0))


def test_a_schedule_counts_by_its_largest_rate():
    decaying = FedBiO(CubeRootDecay(scale=1.0, plateau=8.0))  # 0.5 at first
    assert ranges(decaying)["lower_rate"] == ranges(FedBiO(0.5))["lower_rate"]


@pytest.mark.parametrize(
    ("algorithm", "highest"),
    [
        (LocalBSGM(0.5, SERIES), 2.0),
        (LocalBSGVRM(0.5, SERIES), 4.0),
        (FedBiOAcc(0.5), 4.0),
    ],
)
def test_a_fresh_gradient_never_weighs_more_than_1(algorithm, highest):
    space = search_space(algorithm, curvature=1.0, steps=10)
    mixing = [item for item in space.settings if item.name.endswith("_mixing")]
    assert len(mixing) >= 2
    for item in mixing:
        assert item.high == pytest.approx(highest)
        assert item.widened(best=item.high).high == item.high
        space.at({item.name: item.high})  # the algorithm accepts it


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (LocalBSGM(0.5, SERIES), "hypergradient.scale"),
        (FedNest(0.5, SERIES), "series.scale"),
    ],
)
def test_the_scale_of_a_series_is_searched(algorithm, name):
    assert ranges(algorithm, curvature=4.0)[name] == pytest.approx((0.025, 0.5))
    changed = search_space(algorithm, curvature=4.0, steps=1).at({name: 0.125})
    series = getattr(changed, name.split(".")[0])
    assert (series.scale, series.terms) == (0.125, 5)


def test_with_an_optimiser_its_rate_takes_the_place_of_the_upper_rate():
    optimiser = optax_optimiser("adam", learning_rate=0.1, b2=0.9)
    algorithm = with_server_optimiser(FedBiO(0.5), optimiser)
    space = search_space(algorithm, curvature=2.0, steps=10)
    names = [item.name for item in space.settings]
    assert names == [
        "server_optimiser.learning_rate",
        "algorithm.lower_rate",
        "algorithm.adjoint_rate",
    ]
    changed: Any = space.at(
        {"server_optimiser.learning_rate": 0.3, "algorithm.lower_rate": 0.7}
    )
    assert changed.server_optimiser == optax_optimiser(
        "adam", learning_rate=0.3, b2=0.9
    )
    assert changed.algorithm.lower_rate == 0.7


def test_an_optimiser_that_cannot_be_looked_into_leaves_the_upper_rate():
    algorithm = with_server_optimiser(FedBiO(0.5), optax.adam(0.1))
    assert "algorithm.upper_rate" in ranges(algorithm)


def test_other_algorithms():
    assert list(ranges(AutoFedBiO(rounds=9))) == ["upper_rate"]
    assert "server_rate" in ranges(SimFBO(0.5))


def test_the_given_setting_is_in_its_range_unless_it_is_absurd():
    assert ranges(FedBiO(1.0, lower_rate=5.0))["lower_rate"][1] == 5.0
    absurd = search_space(FedBiO(1.0, lower_rate=1e90), curvature=2.0, steps=1)
    assert absurd.start["lower_rate"] == 1e90
    initial, nearest, *_ = absurd.proposals
    assert initial == absurd.start
    assert nearest == {**initial, "lower_rate": pytest.approx(100.0)}


def test_a_range_is_widened_at_the_edge_that_the_best_is_near():
    item = Setting("upper_rate", 0.01, 100.0)
    assert item.widened(1.0) == item
    assert item.widened(0.02) == item._replace(low=0.001)
    assert item.widened(50.0) == item._replace(high=1000.0)


def test_the_first_proposals_are_the_given_setting_and_the_theory():
    algorithm = LocalBSGM(0.5, SERIES, upper_rate=2.0, lower_rate=0.3)
    space = search_space(algorithm, curvature=4.0, steps=10)
    start, *theory = space.proposals
    assert start == space.start
    assert [item["upper_rate"] for item in theory] == pytest.approx(
        [0.6, 2.0, 6.0, 20.0]
    )
    for item in theory:
        assert item["lower_rate"] == pytest.approx(0.5)  # learning_rate · it = 1 / L
        assert item["hypergradient.scale"] == pytest.approx(0.9 / 4)
        assert item["upper_mixing"] == start["upper_mixing"]
        space.at(item)  # the algorithm accepts it


def test_without_theory_the_given_setting_comes_first_alone():
    space = search_space(AutoFedBiO(rounds=9), curvature=1.0, steps=1)
    assert space.proposals == [space.start]


def test_a_fixed_x_is_searched_around_1():
    # A logarithmic range cannot contain 0.
    space = search_space(FedBiO(1.0, upper_rate=0.0), curvature=2.0, steps=1)
    assert space.settings[0] == Setting("upper_rate", 0.01, 100.0)
    assert space.start["upper_rate"] == 0.0
    assert space.proposals[1]["upper_rate"] == 0.01


def test_an_algorithm_without_rates_is_refused():
    with pytest.raises(ValueError, match=r"Probes has no rate .* Pass the ranges"):
        search_space(Probes(), curvature=1.0, steps=1)
