"""A search improves settings, survives interruptions, and never trusts divergence."""

from math import inf, isfinite
from pathlib import Path

import numpy as np
import pytest

from fedbilevel import FedBiO, Setting, Space, run, tune
from fedbilevel.tuning import scoring
from fedbilevel.tuning.halving import rungs_of
from tests.tuning.toy import ARGUMENTS, DEVICES, PROBLEM, SLOW

ROUNDS = 18
UPPER = Space(SLOW, (Setting("upper_rate", 0.001, 1.0),))


class KilledError(Exception):
    """What a report raises where a process would have been killed."""


def searched(space=SLOW, trials=12, **options):
    return tune(
        PROBLEM, space, DEVICES, 3.0, 3.0, rounds=ROUNDS, trials=trials, **options
    )


@pytest.fixture(scope="module")
def found():
    return searched()


def test_the_best_is_better_than_the_start_and_gives_what_it_promises(found):
    assert found.start.settings["upper_rate"] == 0.01
    assert found.start.rounds == ROUNDS
    assert found.best.score < 0.3 * found.start.score
    for seed, promised in zip(found.seeds, found.best.scores[ROUNDS], strict=True):
        arguments = PROBLEM, found.algorithm, *ARGUMENTS[2:]
        *_, last = run(*arguments, rounds=ROUNDS, seed=seed)
        assert float(last.y - 1) ** 2 == pytest.approx(promised, rel=1e-5)


def test_every_generation_is_halved_and_its_best_run_to_the_end(found):
    for generation in range(3):
        mine = [one for one in found.trials if one.generation == generation]
        assert len(mine) == 4
        for rung in rungs_of(ROUNDS, 4):
            reached = [one for one in mine if rung.rounds in one.scores]
            extra = generation == 0  # the start always goes on
            assert rung.settings <= len(reached) <= rung.settings + extra
            others = [one for one in mine if one not in reached]
            before = [r.rounds for r in rungs_of(ROUNDS, 4) if r.rounds < rung.rounds]
            for other in others if before else ():
                went_on = [
                    np.median(one.scores[before[-1]])
                    for one in reached
                    if one.number != 0 and before[-1] in other.scores
                ]
                limit = np.median(other.scores.get(before[-1], (inf,)))
                assert all(one <= limit for one in went_on)


def test_the_same_search_gives_the_same_trials(found):
    assert searched().trials == found.trials
    assert searched(seed=1).trials[1].settings != found.trials[1].settings


@pytest.mark.slow
def test_a_search_stopped_after_every_batch_ends_as_one_that_was_not(found, tmp_path):
    file = tmp_path / "study.log"
    batches = 0

    def stop(progress):
        raise KilledError

    while True:
        try:
            resumed = searched(file=file, report=stop)
            break
        except KilledError:
            batches += 1
            # Half a line, as of a process that was killed while it wrote.
            with file.open("ab") as journal:
                journal.write(b'{"op_code": 4, "worker')
    assert batches > 9
    assert resumed.trials == found.trials
    assert resumed.importances == found.importances


def test_a_search_stopped_while_it_proposed_proposes_the_same(found, tmp_path):
    file = tmp_path / "study.log"
    with pytest.raises(KilledError):
        searched(file=file, report=kill)
    lines = file.read_bytes().splitlines(keepends=True)
    first_scores = next(n for n, line in enumerate(lines) if b'"scores"' in line)
    for kept in range(1, first_scores, 3):
        cut = tmp_path / f"cut-{kept}.log"
        cut.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(KilledError):
            searched(file=cut, report=kill)
        proposed = Path(cut).read_text()
        for trial in found.trials[:4]:
            for value in trial.settings.values():
                assert str(value)[:8] in proposed or isfinite(value)


def kill(progress):
    raise KilledError


def test_a_file_of_another_search_is_refused(tmp_path):
    file = tmp_path / "study.log"
    with pytest.raises(KilledError):
        searched(UPPER, file=file, report=kill)
    with pytest.raises(ValueError, match="holds another search: seeds"):
        searched(UPPER, file=file, seeds=[4])
    other = Space(FedBiO(0.5, local_steps=2), UPPER.settings)
    with pytest.raises(ValueError, match=r"holds another search: algorithm"):
        searched(other, file=file)


def test_a_setting_that_deteriorates_later_cannot_win():
    # y descends from 3 towards x = 3 · … : with x near 9 it leaves 1 behind.
    found = searched(
        Space(SLOW, (Setting("upper_rate", 0.01, 50.0),)),
        trials=9,
        seeds=[0],
    )
    losers = [
        one
        for one in found.trials
        if one.rounds < ROUNDS and one.score < found.best.score
    ]
    assert found.best.rounds == ROUNDS
    assert all(one.number != found.best.number for one in losers)


def test_one_seed_that_diverges_makes_a_setting_infinitely_bad():
    def score(x, y):
        # x differs with the seed only by what this counts: the second run of three.
        score.calls += 1
        return inf if score.calls % 3 == 2 else float(score.calls)

    score.calls = 0
    with pytest.raises(ArithmeticError, match=r"all 3 settings diverged"):
        searched(UPPER, trials=3, score=score)


def test_if_all_settings_diverge_the_message_says_what_was_tried():
    space = Space(SLOW, (Setting("lower_rate", 1e30, 1e40),))
    with pytest.raises(ArithmeticError) as error:
        searched(space, trials=6)
    message = str(error.value)
    assert message.startswith("all 6 settings diverged, though the smallest values")
    assert "lower_rate 1e+2" in message  # ranges have gone down twice
    assert "DebugSimulation" in message


def test_without_memory_runs_are_made_one_by_one_with_the_same_scores(
    found, monkeypatch
):
    monkeypatch.setattr(scoring, "MEMORY", 0.0)
    one_by_one = searched()
    for mine, other in zip(one_by_one.trials, found.trials, strict=True):
        assert mine.settings == pytest.approx(other.settings)
        assert mine.scores.keys() == other.scores.keys()
        for rounds in mine.scores:
            np.testing.assert_allclose(
                mine.scores[rounds], other.scores[rounds], rtol=1e-6
            )


def test_a_score_of_ones_own_is_minimised():
    found = searched(UPPER, trials=9, score=lambda x, y: float(abs(x - 2)))
    assert found.best.score < 0.3
    assert found.start.score > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "at least 1 trial and 1 seed, but trials=0"),
        ({"seeds": []}, "there are 0 seeds"),
        ({"seeds": [1, 1]}, "names a seed twice"),
    ],
)
def test_impossible_searches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        searched(**options)
