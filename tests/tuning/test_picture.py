"""The plot of a search with an initial rate of 0."""

from math import inf

import pytest

from fedbilevel import FedBiO, Trial, TuningResult
from fedbilevel.picture import svg_of
from fedbilevel.pictures.tuning import tuning_picture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("score", [0.5, inf])
def test_a_given_rate_of_0_is_left_out_of_its_panel(score):
    values = [(0.0, score), (0.1, 0.3), (1.0, 0.2), (2.0, inf)]
    trials = tuple(
        Trial(
            number, 0, {"upper_rate": rate, "lower_rate": 1.0 + number}, {10: (item,)}
        )
        for number, (rate, item) in enumerate(values)
    )
    actual = TuningResult(FedBiO(0.1), trials[2], trials[0], trials, {}, (0,))
    assert "<svg" in svg_of(tuning_picture(actual))
