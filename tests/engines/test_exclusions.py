"""Counts of excluded uploads, by device and across resumption."""

import gc
import logging
from typing import Any

import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    Checkpoints,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    Run,
    run,
)
from fedbilevel.engines.exclusions import ExclusionCounts, Exclusions, _Version

pytestmark = pytest.mark.slow

DEVICES, MINORITY = 5, 3


def loss(x: Any, y: Any, batch: Any) -> Any:
    return ((y - x * batch) ** 2).mean()


def sampled(seed: int, number: int, count: int) -> np.ndarray:
    """Select the minority device in two rounds of three."""
    return np.arange(count) if number % 3 else np.delete(np.arange(count), MINORITY)


@pytest.fixture
def what() -> tuple[Any, ...]:
    """A run whose fourth device uploads NaN."""
    held = [LocalExamples(np.ones(2), np.ones(2)) for _ in range(DEVICES)]
    held[MINORITY] = LocalExamples(np.ones(2), np.full(2, np.inf))
    return BilevelProblem(loss, loss), FedBiO(0.01), InMemoryDevices(held), 3.0, 0.0


def test_exclusions_are_counted_across_resumption(what, tmp_path, caplog):
    options = Checkpoints(tmp_path, every=50)
    whole = Run(*what, rounds=12, participation=sampled)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        rounds = whole.start(options)
        for result in rounds:
            if result.number == 5:
                rounds.close()
                break
        *_, last = whole.resume(options)
        *_, again = whole.resume(options)
    assert last.exclusions.devices == ((MINORITY, 8, 8),)
    assert last.exclusions[:2] == (8, 12 * DEVICES - 4)
    assert again.exclusions == last.exclusions
    # Eight exclusions give four lines: the first, second, fourth and eighth.
    reports = [m.split("rounds")[0].split("(in ")[1] for m in caplog.messages]
    assert reports == [f"{n} of its {n} " for n in (1, 2, 4, 8)]


def test_a_run_without_exclusions_has_none(what):
    problem, algorithm, _, *start = what
    alike = InMemoryDevices([LocalExamples(np.ones(2), np.ones(2))] * 2)
    *_, last = run(problem, algorithm, alike, *start, rounds=3)
    assert last.exclusions == Exclusions(0, participations=6, enrolled=2)


def test_counts_of_a_sample_survive_their_notes():
    counts = ExclusionCounts(4)
    for number in range(9):
        counts.add(np.array([0, 1 + number % 3]), excluded=[0] if number % 2 else [])
    other = ExclusionCounts.read(counts.notes(), 4)
    assert other.snapshot().summary(9) == counts.snapshot().summary(9)
    assert other.of(0) == (0, 4, 9)
    assert other.of(2) == (2, 0, 3)


def test_devices_are_listed_by_the_share_of_their_rounds():
    counts = ExclusionCounts(31)
    often = list(range(30))
    for number in range(100):
        rare = [30] if number < 3 else []
        # Thirty devices in 4 of 100 rounds, one in 3 of the 3 that it was sampled for.
        counts.add(np.array(often + rare), (often if number < 4 else []) + rare)
    summary = counts.snapshot().summary(run_rounds=100)
    assert summary.devices[0] == (30, 3, 3)
    assert len(summary.devices) == 20
    assert summary.frequent == 1


def test_a_device_that_was_excluded_once_is_listed_after_those_excluded_often():
    counts = ExclusionCounts(31)
    for number in range(5):
        counts.add(np.array([30]), [30] if number < 4 else [])
    counts.add(np.arange(30), range(30))
    summary = counts.snapshot().summary(run_rounds=6)
    assert summary.devices[0] == (30, 4, 5)
    assert summary.frequent == 1


def test_the_exclusions_of_a_round_do_not_change_with_later_rounds(what):
    seen, rounds = [], []
    for result in run(*what, rounds=10, participation=sampled):
        seen.append(result.exclusions)
        rounds.append(result)
    assert [result.exclusions for result in rounds] == seen
    # Uploads are inspected two rounds later; the minority is absent in each third.
    assert [item.excluded for item in seen] == [0, 0, 0, 1, 2, 2, 3, 4, 4, 6]
    assert [item.participations for item in seen[:4]] == [0, 0, 4, 9]


def test_snapshots_remember_counts_before_and_after_a_first_exclusion():
    counts, random = ExclusionCounts(6), np.random.default_rng(0)
    taken = []
    for number in range(40):
        participants = random.permutation(6)[:3]
        counts.add(participants, participants[random.random(3) < 0.2].tolist())
        snapshot = counts.snapshot()
        taken.append((snapshot, snapshot.summary(number), counts.notes()))
    for number, (snapshot, summary, notes) in enumerate(taken):
        assert snapshot.summary(number) == summary
        again = ExclusionCounts.read(notes, 6).snapshot()
        assert again.summary(number) == summary


def test_only_a_snapshot_that_is_held_keeps_later_additions():
    def versions() -> int:
        return sum(type(item) is _Version for item in gc.get_objects())

    counts, before = ExclusionCounts(2), versions()
    held = counts.snapshot()
    for _ in range(5_000):
        counts.add(np.arange(2), excluded=[1])
    assert versions() - before == 5_000
    assert held.summary(run_rounds=0) == Exclusions(enrolled=2)
    del held
    assert versions() == before
