"""From a run to a plan and back."""

import pytest

from fedbilevel import (
    FedBiO,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    plan_from,
    rescale,
    with_plan,
)
from fedbilevel.theory import plan_for_accuracy

SERIES = NeumannSeries(terms=6, scale=0.3)


@pytest.mark.parametrize(
    "tuned",
    [
        LocalBSGM(0.1, SERIES, upper_rate=3.0, local_steps=24, batch_size=5),
        LocalBSGVRM(0.1, SERIES, upper_rate=3.0, local_steps=24, initial_batch_size=32),
    ],
)
def test_a_plan_for_more_devices_and_the_same_accuracy_is_a_rescaling(tuned):
    anchor = plan_from(tuned, devices=4, steps=2400, accuracy=0.5)
    assert with_plan(tuned, anchor) == tuned
    plan = plan_for_accuracy(anchor, devices=8, accuracy=0.5, contraction=0.7)
    assert with_plan(tuned, plan) == rescale(tuned, devices_from=4, devices_to=8)
    assert (anchor.rounds, plan.rounds) == (100, 100)


def test_the_series_grows_with_the_accuracy():
    tuned = LocalBSGM(0.1, SERIES, local_steps=24)
    anchor = plan_from(tuned, devices=4, steps=2400, accuracy=0.5)
    plan = plan_for_accuracy(anchor, devices=16, accuracy=0.25, contraction=0.7)
    longer = NeumannSeries(plan.terms, SERIES.scale)
    assert with_plan(tuned, plan).hypergradient == longer
    assert plan.terms > SERIES.terms


def test_no_corollary_is_about_a_rival():
    with pytest.raises(TypeError, match="The algorithm is FedBiO, but"):
        plan_from(FedBiO(0.1), devices=4, steps=10, accuracy=1.0)
