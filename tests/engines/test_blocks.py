"""Rounds in one call give the same numbers, records and warnings as single rounds."""

import logging
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    Checkpoints,
    InMemoryDevices,
    LocalExamples,
    NoUploadsError,
    Phase,
    Run,
    Simulation,
    UniformSample,
    Upload,
    run,
)
from fedbilevel.engines import block, calls
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation

DEVICES, ROUNDS = 5, 17
NEVER = -1
PROGRAMS: Any = block._rounds


class Example(NamedTuple):
    """A number, and the round in which its device uploads NaN."""

    value: np.ndarray
    bad_round: np.ndarray


class Server(NamedTuple):
    x: Any
    y: Any
    number: Any
    setbacks: Any

    @property
    def notices(self):
        return {"the upper loss exploded.": self.setbacks}


@jax.tree_util.register_static
@dataclass(frozen=True)
class Restless:
    """An algorithm with everything that a block has to record.

    A round has three exchanges, two of them of one phase. Devices count and report
    their participations; some upload NaN. Every fourth round is a setback.
    """

    def init(self, problem, x, y):
        zero = jnp.array(0, jnp.int32)
        return Server(x, y, zero, zero), {"rounds": zero}

    def opening(self, problem):
        return ()

    def phases(self, problem):
        def step(carry, data, key):
            server, _, nonsense = carry
            (batch,) = data.lower.draw(key, 2, draws=1)
            return server._replace(
                y=server.y
                - 0.2 * problem.lower_gradient(server.x, server.y, batch)
                + nonsense
            ), *carry[1:]

        def start(downlink, private, data, key):
            (batch,) = data.upper.draw(key, 1, draws=1)
            bad = batch.bad_round[0] == downlink.number
            return downlink, private, jnp.where(bad, jnp.nan, 0.0)

        def count(carry, downlink, key):
            rounds = carry[1]["rounds"] + 1
            reports = {"rounds": rounds.astype(float)}
            return (
                Upload((downlink.x + 0.01 * carry[0].y,)),
                {"rounds": rounds},
                reports,
            )

        def conclude(server, mean, key):
            return server._replace(
                x=mean.update[0] + 0.001 * jax.random.normal(key),
                number=server.number + 1,
                setbacks=server.setbacks + (server.number % 4 == 2).astype(jnp.int32),
            )

        descend = Phase(
            name="descend",
            steps=2,
            broadcast=lambda server: server,
            start=start,
            step=step,
            finish=lambda carry, downlink, key: (Upload((carry[0].y,)), carry[1], {}),
            server=lambda server, mean, key: server._replace(y=mean.update[0]),
        )
        last = descend._replace(name="count", steps=0, finish=count, server=conclude)
        return descend, descend, last


def loss(x, y, batch):
    return jnp.mean((y - x * batch.value) ** 2)


PROBLEM = BilevelProblem(loss, loss)


def resumed(*inputs, checkpoints, every, **settings):
    return Run(*inputs, **settings).resume(checkpoints, every)


def start_run(bad_rounds=(NEVER,) * DEVICES, start=run, **settings):
    held = []
    for device, bad in enumerate(bad_rounds):
        values = np.linspace(0.5, 1.0 + device, 3)
        examples = Example(values, np.full(3, bad, np.int32))
        held.append(LocalExamples(examples, examples))
    settings = {"rounds": ROUNDS, "participation": UniformSample(3), **settings}
    return start(PROBLEM, Restless(), InMemoryDevices(held), 3.0, 0.0, **settings)


def facts(result) -> dict[str, Any]:
    """Return all fields of a round as plain values, except its numbers."""
    return {
        "number": result.number,
        "costs": result.costs,
        "exclusions": result.exclusions,
        "participants": [item.contributors.tolist() for item in result.reports],
        "excluded": [item.excluded.tolist() for item in result.reports],
    }


def numbers(result) -> Any:
    reports = [(item.info, item.dispersion) for item in result.reports]
    return jax.tree.map(np.array, (result.state, reports))


def assert_same(actual, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, other)


def assert_near(actual, other) -> None:
    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)

    jax.tree.map(check, actual, other)


def contents(rounds) -> dict[int, tuple[Any, Any]]:
    return {result.number: (facts(result), numbers(result)) for result in rounds}


@pytest.mark.nightly
def test_rounds_of_any_blocks_are_those_of_one_at_a_time(caplog):
    bad_rounds = NEVER, 3, NEVER, 9, 10
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        alone = contents(start_run(bad_rounds))
        warnings = caplog.messages[:]
        assert any("Round 10: the upper loss" in item for item in warnings)
        assert any("excluded device" in item for item in warnings)
        before, together = PROGRAMS._cache_size(), {}
        for every in (2, 3, 7):
            caplog.clear()
            together[every] = contents(start_run(bad_rounds, every=every))
            assert caplog.messages == warnings
    # The last block is shorter than the others, but runs the same program.
    assert PROGRAMS._cache_size() == before + 1
    assert [*together[7]] == [6, 13, 16]
    for every, rounds in together.items():
        for number, (reports, actual) in rounds.items():
            assert (number + 1) % every == 0 or number == ROUNDS - 1
            assert reports == alone[number][0]
            assert_near(actual, alone[number][1])
        assert_same(rounds[ROUNDS - 1][1], together[2][ROUNDS - 1][1])


@pytest.mark.slow
def test_a_run_that_was_left_resumes_to_the_same_bits(tmp_path):
    *_, whole = start_run(every=5)
    checkpoints = Checkpoints(tmp_path, every=4)
    with closing(start_run(every=5, checkpoints=checkpoints)) as rounds:
        assert [next(rounds).number, next(rounds).number] == [4, 9]
    rest = list(start_run(start=resumed, every=5, checkpoints=checkpoints))
    assert [result.number for result in rest] == [14, 16]
    assert facts(rest[-1]) == facts(whole)
    assert_same(numbers(rest[-1]), numbers(whole))


@pytest.mark.slow
def test_the_error_names_the_round_and_the_checkpoint_before_it(tmp_path):
    messages = []
    for every in (1, 6):
        checkpoints = Checkpoints(tmp_path / str(every), every=4)
        with pytest.raises(NoUploadsError) as raised:
            list(start_run((9,) * DEVICES, every=every, checkpoints=checkpoints))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "Round 9, exchange 0" in messages[0]
    assert "has 8 rounds" in messages[0]


@pytest.mark.slow
def test_rounds_of_other_sizes_and_mistakes_come_where_they_would(tmp_path):
    def choose(seed, number, count):
        if number == 13:
            raise ValueError("nobody is there")
        return np.arange([3, 3, 3, 5, 1, 2][number % 6])

    seen: dict[int, dict[int, Any]] = {1: {}, 6: {}}

    def look(every):
        checkpoints = Checkpoints(tmp_path / str(every), every=4)
        settings = {"participation": choose, "checkpoints": checkpoints}
        for result in start_run(every=every, **settings):
            seen[every][result.number] = facts(result), numbers(result)

    for every in seen:
        with pytest.raises(ValueError, match="nobody is there"):
            look(every)
    assert [*seen[6]] == [5, 11]
    for number, (reports, actual) in seen[6].items():
        assert reports == seen[1][number][0]
        assert_near(actual, seen[1][number][1])
    # The last whole round before the mistake has a checkpoint too.
    (last,) = start_run(
        start=resumed,
        rounds=13,
        every=100,
        participation=choose,
        checkpoints=Checkpoints(tmp_path / "6", every=4),
    )
    assert last.number == 12


@pytest.mark.slow
def test_an_engine_that_takes_several_calls_a_round_takes_one_at_a_time():
    engine = Simulation(chunk_size=2)
    before = PROGRAMS._cache_size()
    one_by_one = contents(start_run(engine=engine, rounds=4))
    rounds = contents(start_run(engine=engine, rounds=4, every=3))
    assert PROGRAMS._cache_size() == before
    assert [*rounds] == [2, 3]
    for number, (reports, actual) in rounds.items():
        assert reports == one_by_one[number][0]
        assert_same(actual, one_by_one[number][1])


@pytest.mark.slow
def test_calls_grow_with_the_pace_and_others_see_where_they_end(monkeypatch):
    def numbers_seen():
        def begin(*inputs, rounds, **settings):
            whole = Run(*inputs, rounds=rounds, **settings)
            return [item.number for item in whole.start(every=rounds, progress=True)]

        return start_run(start=begin)

    monkeypatch.setattr(calls, "CALL_SECONDS", 1e9)
    assert numbers_seen() == [0, 2, 6, 14, 16]
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.0)
    assert numbers_seen() == list(range(ROUNDS))


@pytest.mark.parametrize("every", [0, -1, True])
def test_every_is_a_whole_number(every):
    with pytest.raises(ValueError, match="whole number, at least 1"):
        start_run(every=every)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_one_trajectory(name):
    alone = federation.trajectory(name, Simulation(), rounds=9)
    three, seven = (
        federation.trajectory(name, Simulation(), rounds=9, every=every)
        for every in (3, 7)
    )
    np.testing.assert_array_equal(three[-1], seven[-1])
    np.testing.assert_allclose(three, [alone[2], alone[5], alone[8]], rtol=0, atol=1e-9)


@pytest.mark.nightly
@pytest.mark.process
def test_a_run_that_is_left_when_python_ends_says_nothing():
    ended = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""


LEFT = """
import jax.numpy as jnp, numpy as np
from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, run
loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
ones = np.ones(1, np.float32)
devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
what = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
rounds = run(*what, rounds=100, every=5)
next(rounds)
"""
