"""A repeated phase is one object, also in wrappers, and needs one program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import pytest

from fedbilevel import (
    Clip,
    ExampleNoise,
    FederatedAlgorithm,
    FedNest,
    NeumannSeries,
    Phase,
    Upload,
    WarmStart,
    optax_optimiser,
    run,
    with_server_optimiser,
    with_transforms,
)
from fedbilevel.algorithms import Switch, map_phases, register
from fedbilevel.engines.preparation import references
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation

PROBLEM = quadratic.problem()
FEDNEST = FedNest(0.1, NeumannSeries(terms=20, scale=0.15), lower_rounds=3)
SGD = optax_optimiser("sgd", learning_rate=1.0)


def wrapped(phase: Phase) -> Phase:
    def finish(carry: Any, downlink: Any, key: Any) -> Any:
        upload, state, info = phase.finish(carry, downlink, key)
        return jax.tree.map(lambda leaf: 0.5 * leaf, upload), state, info

    return phase._replace(finish=finish)


def rounds_of(algorithm: FederatedAlgorithm) -> list[tuple[Phase, ...]]:
    return [algorithm.opening(PROBLEM), algorithm.phases(PROBLEM)]


def test_wrapping_phases_makes_no_more_of_them():
    _, phases = rounds_of(FEDNEST)
    plain = references(False, phases)
    assert references(False, map_phases(wrapped, phases)) == plain
    assert len(set(plain)) == 6
    assert len(plain) == 3 * 2 + 1 + 20 + 1 + 1


@pytest.mark.parametrize(
    "wrap",
    [
        lambda algorithm: with_server_optimiser(algorithm, SGD),
        lambda algorithm: with_transforms(algorithm, Clip(1.0)),
        lambda algorithm: with_transforms(algorithm, ExampleNoise(1.0, 1.0)),
        lambda algorithm: with_transforms(
            with_server_optimiser(algorithm, SGD), Clip(1.0)
        ),
    ],
)
def test_every_wrapper_keeps_repeated_phases(wrap):
    _, phases = rounds_of(wrap(FEDNEST))
    assert references(False, phases) == references(False, rounds_of(FEDNEST)[1])


def test_two_phases_of_one_name_are_refused():
    _, phases = rounds_of(FEDNEST)
    first, second = phases[:2]
    message = "Two phases of a round have the name 'lower gradient'"
    with pytest.raises(ValueError, match=message):
        references(False, (first, second._replace(name=first.name)))
    with pytest.raises(ValueError, match=r"\(phase,\) \* 3"):
        references(False, (first, first._replace(steps=first.steps + 1)))


class Point(NamedTuple):
    """A server state without steps."""

    x: Any
    y: Any


@register
@dataclass(frozen=True)
class TwoSteps:
    """Exchanges that add 1 and then 3 to x, built by one function.

    Attributes:
        same: True to give both the same name.
    """

    same: Switch = False

    def init(self, problem, x, y):
        return Point(x, y), ()

    def opening(self, problem):
        return ()

    def phases(self, problem):
        def adding(name: str, number: float) -> Phase:
            return Phase(
                name=name,
                steps=0,
                broadcast=lambda server: server.x,
                start=lambda downlink, private, data, key: downlink + number,
                step=lambda carry, data, key: carry,
                finish=lambda carry, downlink, key: (Upload((carry,)), (), {}),
                server=lambda server, mean, key: server._replace(x=mean.update[0]),
            )

        return adding("add", 1.0), adding("add" if self.same else "add more", 3.0)


def test_phases_that_differ_only_in_a_closure_never_run_as_one():
    inputs = federation.in_memory(), *federation.START
    with pytest.raises(ValueError, match="Two phases of a round have the name 'add'"):
        next(run(PROBLEM, TwoSteps(same=True), *inputs, rounds=1))
    (last,) = run(PROBLEM, TwoSteps(), *inputs, rounds=1)
    assert (last.x - federation.START[0]).tolist() == pytest.approx([4.0] * 3)


@pytest.mark.parametrize("exchanges", [1, 3])
def test_the_exchanges_of_a_warm_start_are_one_phase(exchanges):
    phases = WarmStart(0.1, exchanges=exchanges).phases(PROBLEM)
    assert len(set(map(id, phases))) == 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_names_its_phases(name):
    for phases in rounds_of(ALGORITHMS[name]()):
        actual = references(False, phases)
        assert all(
            phases[item.index] is phase
            for item, phase in zip(actual, phases, strict=True)
        )
