"""The outcome of a run: the upper loss decides, and so do excluded devices."""

import json
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from fedbilevel import Costs
from fedbilevel.engines.exclusions import DeviceExclusions, ExclusionCounts, Exclusions
from fedbilevel.experiments.outcome import outcome_of
from fedbilevel.tracking.records import Record


def records(*losses: float, **others: list[float]) -> list[Record]:
    return [
        Record(
            10 * number,
            1.0,
            Costs(),
            {"loss": loss, **{name: values[number] for name, values in others.items()}},
        )
        for number, loss in enumerate(losses)
    ]


@pytest.mark.parametrize(
    ("losses", "name"),
    [
        ((2.3, 1.0, 0.5), "IMPROVED"),
        ((2.3, 0.5, 2.31), "WORSE"),
        ((-1.0, -2.0, -0.5), "WORSE"),
        ((0.0, 0.1), "WORSE"),
        ((-1.0, -2000.0), "IMPROVED"),
        ((2.3, 1e4, 5e33), "DIVERGED"),
        ((-2.0, 1e4), "DIVERGED"),
        ((2.3, nan), "DIVERGED"),
        ((2.3, -inf), "DIVERGED"),
        ((nan, 2.0), "IMPROVED"),
        ((1.0, 1.0), "UNCHANGED"),
        ((0.0, 0.0), "UNCHANGED"),
        ((0.5, 0.5 + 6e-8), "UNCHANGED"),  # one rounding in single precision
        ((0.5, 0.5 - 6e-8), "UNCHANGED"),
        ((-0.5, -0.5 + 6e-8), "UNCHANGED"),
        ((0.5, 0.5 + 1e-6), "WORSE"),
        ((0.0, 1e-9), "WORSE"),
    ],
)
def test_the_loss_decides(losses, name):
    outcome = outcome_of(records(*losses))
    assert outcome.change.name == name
    assert outcome.is_good == (name in ("IMPROVED", "UNCHANGED"))


def test_reasons_have_the_numbers_and_the_cause():
    outcome = outcome_of(records(2.3, 0.5, 2.4), cause="The lower step was too large.")
    assert outcome.reasons == (
        "worse than at the start: the validation loss was 2.3 and is 2.4; the lowest "
        "was 0.5, after 10 rounds.",
        "The lower step was too large.",
    )
    assert json.loads(outcome.line) == {
        "outcome": "worse than at the start",
        "excluded": {},
        "more_excluded": 0,
        "reasons": list(outcome.reasons),
    }


def test_a_metric_that_is_no_longer_finite_is_a_divergence():
    outcome = outcome_of(records(2.0, 1.0, training_loss=[1.0, nan], odd=[nan, nan]))
    assert outcome.change.name == "DIVERGED"
    assert "the training loss is not finite" in outcome.reasons[0]
    assert "odd" not in outcome.reasons[0]


def test_another_metric_that_falls_is_no_failure():
    assert outcome_of(records(2.0, 1.0, accuracy=[0.9, 0.1])).is_good


def excluded(rounds: int, *devices: tuple[int, int, int], **totals: int) -> Any:
    listed = tuple(DeviceExclusions(*device) for device in devices)
    counts = {"excluded": sum(d.excluded for d in listed), "participations": 8000}
    exclusions = Exclusions(**{**counts, **totals}, enrolled=8, devices=listed)
    last = Record(rounds, 1.0, Costs(), {"loss": 0.5}, exclusions)
    again = Record.parse(last.line)
    assert again == last
    return outcome_of([*records(2.0), again])


def test_a_device_that_is_excluded_in_most_rounds_is_a_failure():
    outcome = excluded(200, (3, 190, 200), (5, 90, 200))
    assert outcome.reasons == (
        "device 3 was excluded in 190 of its 200 rounds: the result uses only the "
        "other 7 devices.",
    )
    assert json.loads(outcome.line)["excluded"] == {"3": 190}


def test_devices_beyond_the_listed_ones_are_counted():
    counts = ExclusionCounts(100)
    for _ in range(10):
        counts.add(np.arange(100), excluded=range(45))
    exclusions = counts.snapshot().summary(run_rounds=10)
    last = Record(10, 1.0, Costs(), {"loss": 0.5}, exclusions)
    outcome = outcome_of([*records(2.0), Record.parse(last.line)])
    (reason,) = outcome.reasons
    assert reason.count("was excluded in 10 of its 10 rounds") == 20
    assert reason.endswith(
        "; and 25 more in more than half of their rounds: the result uses only the "
        "other 55 devices."
    )
    line = json.loads(outcome.line)
    assert len(line["excluded"]) + line["more_excluded"] == 45


def test_a_record_without_the_number_of_devices_has_the_listed_ones():
    listed = (DeviceExclusions(3, 9, 10),)
    last = Record(10, 1.0, Costs(), {"loss": 0.5}, Exclusions(9, 80, 8, listed))
    old = json.loads(last.line)
    del old["exclusions"]["frequent"]
    outcome = outcome_of([*records(2.0), Record.parse(json.dumps(old))])
    assert "the other 7 devices" in outcome.reasons[0]
    assert outcome.more_excluded == 0


def test_names_of_sites_replace_their_numbers():
    listed = (DeviceExclusions(1, 3, 3),)
    last = Record(3, 1.0, Costs(), {"a": 1.0}, Exclusions(3, 6, 2, listed))
    assert outcome_of([last], devices=["north", "south"]).reasons == (
        "south was excluded in 3 of its 3 rounds: the result uses only the other 1 "
        "device.",
    )


@pytest.mark.parametrize(
    ("rounds", "device", "is_good"),
    [
        (200, (3, 100, 200), True),  # not more than half
        (200, (3, 2, 2), True),  # sampled twice, and unlucky
        (200, (3, 3, 5), False),
        (2, (3, 2, 2), False),  # all of a short run
    ],
)
def test_how_often_is_too_often(rounds, device, is_good):
    assert excluded(rounds, device).is_good == is_good


def test_most_uploads_excluded_though_no_device_often():
    outcome = excluded(200, (3, 1, 1), excluded=4001)
    assert outcome.reasons[0].startswith("4001 of 8000 uploads were excluded")
