"""Proposals of a study: ranges follow the best values."""

from math import inf

import pytest

from fedbilevel import FedBiO, Setting, Space
from fedbilevel.tuning.study import opened

SPACE = Space(
    FedBiO(1.0, upper_rate=0.5),
    (Setting("upper_rate", 0.1, 10.0), Setting("lower_rate", 0.1, 10.0)),
)


def reported(study, scores):
    """Report a score of each trial of the first generation."""
    for trial, score in zip(study.propose(0, len(scores)), scores, strict=True):
        study.report(trial.number, 10, [score])
    study.conclude(range(len(scores)), rounds=30)


def test_the_first_trial_is_the_given_setting():
    with opened(None, SPACE, seed=0) as study:
        first, second = study.propose(0, 2)
    assert first.settings == {"upper_rate": 0.5, "lower_rate": 1.0}
    assert second.settings != first.settings


@pytest.mark.parametrize("upper_rate", [0.0, 99.0])
def test_the_first_trial_is_the_given_setting_outside_of_its_range(upper_rate):
    space = SPACE._replace(algorithm=FedBiO(1.0, upper_rate=upper_rate))
    with opened(None, space, seed=0) as study:
        first, nearest, *_ = study.propose(0, 12)
        assert first.settings == {"upper_rate": upper_rate, "lower_rate": 1.0}
        assert nearest.settings == {
            "upper_rate": 0.1 if upper_rate == 0 else 10.0,
            "lower_rate": 1.0,
        }
        reported(
            study, [0.01 * n for n in range(12)]
        )  # the initial setting is the best
        assert len(study.propose(1, 12)) == 12
        assert len(study.trials()) == 24
        assert len(study.importances()) == 2


def test_ranges_are_widened_where_the_best_is_at_an_edge():
    space = SPACE._replace(algorithm=FedBiO(1.0, upper_rate=9.0))
    with opened(None, space, seed=0) as study:
        reported(study, [0.1, 0.2, inf])
        upper, lower = study.settings(1)
        assert (upper.low, upper.high) == (0.1, 100.0)
        assert (lower.low, lower.high) == (0.1, 10.0)
        proposed = study.propose(1, 20)
    values = [item.settings["upper_rate"] for item in proposed]
    assert max(values) > 10.0


def test_ranges_go_down_where_all_diverged():
    with opened(None, SPACE, seed=0) as study:
        reported(study, [inf, inf])
        for item in study.settings(1):
            assert (item.low, item.high) == pytest.approx((0.001, 10.0))


def test_two_processes_cannot_use_one_file(tmp_path):
    file = tmp_path / "study.log"
    with (
        opened(file, SPACE, seed=0),
        pytest.raises(ValueError, match="Another process is tuning in"),
        opened(file, SPACE, seed=0),
    ):
        pass


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b'{"op_co', b"17", b"{}"])
def test_a_damaged_line_is_named_with_its_cure(damage, tmp_path):
    file = tmp_path / "study.log"
    with opened(file, SPACE, seed=0) as study:
        study.propose(0, 2)
    whole = file.read_bytes().splitlines()
    assert len(whole) > 5
    file.write_bytes(b"\n".join([*whole[:4], damage, *whole[5:], b""]))
    message = (
        r"study.log, line 5: .* damaged, .* Remove this line and all lines below it"
    )
    with pytest.raises(ValueError, match=message), opened(file, SPACE, seed=0):
        pass
    # The remedy works: the lines above the damage are a study.
    file.write_bytes(b"\n".join([*whole[:4], b""]))
    with opened(file, SPACE, seed=0) as study:
        assert len(study.propose(0, 2)) == 2
    file.write_bytes(b"\n".join([damage, *whole[1:], b""]))
    with (
        pytest.raises(ValueError, match=r"line 1: .* Remove the file"),
        opened(file, SPACE, seed=0),
    ):
        pass


def test_what_is_missing_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with (
        pytest.raises(ImportError, match=r"pip install 'fedbilevel\[tune\]'"),
        opened(None, SPACE, seed=0),
    ):
        pass
