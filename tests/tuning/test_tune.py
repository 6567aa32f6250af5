"""A search improves settings, survives interruptions, and never trusts divergence."""

from dataclasses import replace
from functools import cache
from itertools import count
from math import inf, isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    InMemoryDevices,
    Limits,
    LocalExamples,
    Run,
    Setting,
    Space,
    run,
    tune,
)
from fedbilevel.tuning import scoring
from fedbilevel.tuning.halving import rungs_of
from fedbilevel.tuning.study import overall
from tests.algorithms.table import at_night
from tests.tuning.toy import PROBLEM, SLOW, devices

ROUNDS = 18
UPPER = Space(SLOW, (Setting("upper_rate", 0.001, 1.0),))


class KilledError(Exception):
    """An exception in place of the end of a killed process."""


def searched(space: Any = SLOW, trials=12, seed=0, rounds=ROUNDS, **options):
    algorithm, settings = space if isinstance(space, Space) else (space, None)
    whole = Run(PROBLEM, algorithm, devices(), 3.0, 3.0, rounds=rounds, seed=seed)
    return tune(whole, settings=settings, trials=trials, **options)


@pytest.fixture
def search_result():
    return search_once()


@cache
def search_once():
    return searched()


def kill(progress):
    raise KilledError


@pytest.mark.slow
def test_the_best_is_better_than_the_start_and_gives_what_it_promises(search_result):
    assert search_result.start.settings["upper_rate"] == 0.01
    assert search_result.start.rounds == ROUNDS
    assert search_result.best.score < 0.5 * search_result.start.score
    for seed, promised in zip(
        search_result.seeds, search_result.best.scores[ROUNDS], strict=True
    ):
        *_, last = run(
            PROBLEM,
            search_result.algorithm,
            devices(),
            3.0,
            3.0,
            rounds=ROUNDS,
            seed=seed,
        )
        assert float(last.y - 1) ** 2 == pytest.approx(promised, rel=1e-9)


@pytest.mark.slow
def test_every_generation_is_halved_and_its_best_run_to_the_end(search_result):
    for generation in range(4):
        mine = [item for item in search_result.trials if item.generation == generation]
        assert len(mine) == 3
        first, last = rungs_of(ROUNDS, 3, 3)
        assert all(len(item.scores[first.rounds]) == 1 for item in mine)
        assert all(len(item.scores.get(last.rounds, "all")) == 3 for item in mine)
        reached = {item.number for item in mine if item.rounds == last.rounds}
        expected = sorted(mine, key=lambda item: overall(item.scores[first.rounds]))
        best = {item.number for item in expected[: last.settings]}
        # The initial setting continues in any case.
        assert reached == best | ({0} if generation == 0 else set())


@pytest.mark.parametrize(
    "space",
    [
        FedBiO(1.0, upper_rate=0.0, lower_rate=0.1, adjoint_rate=0.1),
        Space(SLOW, (Setting("upper_rate", 0.1, 1.0),)),
        *at_night(FedBiO(1e-4)),
    ],
)
@pytest.mark.slow
def test_the_given_setting_runs_as_it_is_and_wins_if_nothing_beats_it(space, tmp_path):
    # x must not move, so the settings that move it least are the best.
    initial: Any = space.algorithm if isinstance(space, Space) else space
    options = {"seeds": [0, 1], "score": lambda x, y: float(abs(x - 3)), "trials": 4}
    with pytest.raises(KilledError):
        searched(space, file=tmp_path / "study.log", report=kill, **options)
    search_result = searched(space, file=tmp_path / "study.log", **options)
    assert len(search_result.trials) == 4
    assert search_result.start.rounds == ROUNDS
    for seed, score in zip((0, 1), search_result.start.scores[ROUNDS], strict=True):
        *_, last = run(PROBLEM, initial, devices(), 3.0, 3.0, rounds=ROUNDS, seed=seed)
        assert float(abs(last.x - 3)) == pytest.approx(score, rel=1e-9)
    assert search_result.best.score <= search_result.start.score
    assert (search_result.algorithm == initial) == (
        search_result.best is search_result.start
    )
    if initial.upper_rate == 0.0:
        assert search_result.algorithm == initial


@pytest.mark.slow
def test_the_same_search_gives_the_same_trials(search_result):
    assert searched().trials == search_result.trials
    assert searched(seed=1).trials[-1].settings != search_result.trials[-1].settings


@pytest.mark.nightly
def test_a_search_stopped_after_every_batch_ends_as_one_that_was_not(
    search_result, tmp_path
):
    file = tmp_path / "study.log"
    batches = 0

    while True:
        try:
            resumed = searched(file=file, report=kill)
            break
        except KilledError:
            batches += 1
            # Half a line, as left by a process that was killed during a write.
            with file.open("ab") as journal:
                journal.write(b'{"op_code": 4, "worker')
    assert batches == 8
    assert resumed.trials == search_result.trials
    assert resumed.importances == search_result.importances


@pytest.mark.nightly
def test_a_search_killed_while_it_proposed_proposes_the_same(search_result, tmp_path):
    file = tmp_path / "study.log"
    with pytest.raises(KilledError):
        searched(file=file, report=kill)
    lines = file.read_bytes().splitlines(keepends=True)
    scored = next(n for n, line in enumerate(lines) if b'"scores"' in line)
    assert scored > 15
    for state in range(1, scored, 7):
        cut = tmp_path / f"cut-{state}.log"
        cut.write_bytes(b"".join(lines[:state]))
        resumed = searched(file=cut)
        assert resumed.trials == search_result.trials


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ((13, 16, 13), (4, 4, 4, 1, 3)),
        ((3, 8), (1, 1, 1, 2, 2, 1)),
        pytest.param((5, 30), (2, 2, 1, 8, 8, 8, 1), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_more_trials_continue_a_finished_search(counts, sizes, tmp_path):
    # No generation is continued, because its halving is complete.
    for trials in counts:
        search_result = searched(
            UPPER, trials=trials, seeds=[0], file=f"{tmp_path}/a.log"
        )
        assert len(search_result.trials) >= trials
    generations = [item.generation for item in search_result.trials]
    assert tuple(map(generations.count, range(len(sizes)))) == sizes
    assert all(item.scores for item in search_result.trials)


@pytest.mark.slow
def test_a_search_killed_in_its_last_generation_continues_with_more(tmp_path):
    def kill_late(progress):
        if progress.generation == 3:
            raise KilledError

    file = tmp_path / "study.log"
    with pytest.raises(KilledError):
        searched(UPPER, trials=13, seeds=[0], file=file, report=kill_late)
    assert len(searched(UPPER, trials=16, seeds=[0], file=file).trials) == 16


@pytest.mark.slow
def test_a_file_of_another_search_is_refused(tmp_path):
    file = tmp_path / "study.log"
    with pytest.raises(KilledError):
        searched(UPPER, file=file, report=kill)
    with pytest.raises(ValueError, match="contains another search: seeds"):
        searched(UPPER, file=file, seeds=[4])
    with pytest.raises(ValueError, match="proposal_seed was 0 and is 1"):
        searched(UPPER, file=file, seed=1)
    other = Space(FedBiO(0.5, local_steps=2), UPPER.settings)
    with pytest.raises(ValueError, match=r"contains another search: algorithm"):
        searched(other, file=file)
    wider = Space(SLOW, (Setting("upper_rate", 0.001, 2.0),))
    with pytest.raises(ValueError, match=r"upper_rate\.high was 1\.0 and is 2\.0"):
        searched(wider, file=file)
    with pytest.raises(ValueError, match="contains another search: score was None"):
        searched(UPPER, file=file, score=lambda x, y: float(y))


@pytest.mark.slow
def test_a_file_of_another_score_is_refused_and_the_same_resumes(tmp_path):
    def distance_to(target):
        return lambda x, y: float(abs(x - target))

    options = {"trials": 2, "seeds": [0], "file": tmp_path / "study.log"}
    search_result = searched(UPPER, score=distance_to(2.0), **options)
    assert (
        searched(UPPER, score=distance_to(2.0), **options).trials
        == search_result.trials
    )
    with pytest.raises(ValueError, match=r"score\.target was 2\.0 and is 1\.0"):
        searched(UPPER, score=distance_to(1.0), **options)


def test_a_setting_that_deteriorates_later_cannot_win():
    # x falls from 3 to 1: a run at x = 2 after 10 rounds is below it at the end.
    search_result = searched(UPPER, trials=27, score=lambda x, y: float(abs(x - 2)))
    early = min(search_result.trials, key=lambda item: item.scores[10])
    assert early.scores[10] < search_result.best.scores[10]
    assert early.rounds == ROUNDS  # it was run to the end, and lost
    assert early.score > search_result.best.score


def test_one_seed_that_diverges_makes_a_setting_infinitely_bad():
    def score(x, y):
        # One call for the shorter run, and the second of three seeds of the full run.
        return inf if next(calls) == 2 else 1.0

    calls = count()
    with pytest.raises(ArithmeticError, match="All 1 setting diverged"):
        searched(UPPER, trials=1, score=score)
    assert next(calls) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("memory", [scoring.MEMORY, *at_night(0.0)])
def test_uploads_that_are_not_finite_make_a_setting_infinitely_bad(memory, monkeypatch):
    # The steps of the last device on y overflow; it is excluded, others continue.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - 1) ** 2 + 0 * batch),
        lower_loss=lambda x, y, batch: jnp.mean(batch * (y - x) ** 2) / 2,
    )
    held = InMemoryDevices(
        [LocalExamples(np.ones(1), np.full(1, c)) for c in (1.0, 1.0, 1e40)]
    )
    algorithm = FedBiO(0.5, upper_rate=0.01, local_steps=20)
    *_, last = run(problem, algorithm, held, 3.0, 2.0, rounds=2)
    assert last.exclusions.excluded == 2
    assert np.isfinite(last.x)
    monkeypatch.setattr(scoring, "MEMORY", memory)
    whole = Run(problem, algorithm, held, 3.0, 2.0, rounds=2)
    options: Any = {"settings": [Setting("upper_rate", 0.001, 0.1)]}
    options |= {"trials": 2, "seeds": [0]}
    with pytest.raises(ArithmeticError, match="All 2 settings diverged"):
        tune(whole, **options)
    # If the limits exclude large uploads, this setting is as good as any.
    limited = tune(replace(whole, limits=Limits(norm=1e6)), **options)
    assert isfinite(limited.best.score)


@pytest.mark.slow
def test_a_setting_that_diverges_cannot_win_by_a_bounded_score():
    # The sigmoid is best at y = ∞, to which lower rates above 2 diverge.
    problem = BilevelProblem(
        lambda x, y, b: jnp.mean(jax.nn.sigmoid(-y * b)) + 10 * (x + 3) ** 2,
        lambda x, y, b: jnp.mean((y - x * b) ** 2) / 2,
    )
    algorithm = FedBiO(1.0, upper_rate=0.001, lower_rate=0.5, adjoint_rate=0.5)
    search_result = tune(
        Run(problem, algorithm, devices(), -3.0, 0.0, rounds=20),
        settings=[Setting("lower_rate", 0.1, 10.0)],
        trials=12,
        seeds=[0],
    )
    rates = {item.settings["lower_rate"]: item.score for item in search_result.trials}
    assert any(rate > 2.5 for rate in rates)
    assert all(score == inf for rate, score in rates.items() if rate > 2.5)
    assert search_result.best.settings["lower_rate"] < 2.0


def test_if_all_settings_diverge_the_message_says_what_was_tried():
    algorithm = FedBiO(1.0, lower_rate=1e35)
    space = Space(algorithm, (Setting("lower_rate", 1e30, 1e40),))
    with pytest.raises(ArithmeticError) as error:
        searched(space, trials=6)
    message = str(error.value)
    assert message.startswith("All 6 settings diverged. The smallest values")
    assert "lower_rate" in message
    assert "DebugSimulation" in message


@pytest.mark.slow
def test_without_memory_runs_are_made_one_by_one_with_the_same_scores(monkeypatch):
    at_once = searched(trials=3)
    monkeypatch.setattr(scoring, "MEMORY", 0.0)
    one_by_one = searched(trials=3)
    for mine, other in zip(one_by_one.trials, at_once.trials, strict=True):
        assert mine.settings == pytest.approx(other.settings)
        assert mine.scores.keys() == other.scores.keys()
        for rounds in mine.scores:
            np.testing.assert_allclose(
                mine.scores[rounds], other.scores[rounds], rtol=1e-6
            )


def test_a_score_of_ones_own_is_minimised():
    search_result = searched(UPPER, trials=27, score=lambda x, y: float(abs(x - 2)))
    assert search_result.best.score < 0.1
    assert search_result.start.score > 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"trials": 0}, "trials is 0"),
        ({"seeds": []}, "there are 0 seeds"),
        ({"seeds": [1, 1]}, "Remove the repeated seed"),
    ],
)
def test_impossible_searches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        searched(**options)
