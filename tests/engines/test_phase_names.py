"""A phase is identified by its name, so wrapped phases need no further programs."""

from typing import Any

import jax
import pytest

from fedbilevel import FederatedAlgorithm, FedNest, NeumannSeries, Phase
from fedbilevel.engines.preparation import references
from tests import quadratic
from tests.algorithms.table import ALGORITHMS

PROBLEM = quadratic.problem()
FEDNEST = FedNest(0.1, NeumannSeries(terms=20, scale=0.15), lower_rounds=3)


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
    assert references(False, tuple(map(wrapped, phases))) == plain
    assert len(set(plain)) == 6
    assert len(plain) == 3 * 2 + 1 + 20 + 1 + 1


def test_two_phases_of_one_name_are_refused():
    _, phases = rounds_of(FEDNEST)
    first, second = phases[:2]
    with pytest.raises(
        ValueError, match="Two different phases of a round have the name"
    ):
        references(False, (first, second._replace(name=first.name)))
    with pytest.raises(ValueError, match="Two different phases"):
        references(False, (second, second._replace(steps=second.steps + 1)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_names_its_phases(name):
    for phases in rounds_of(ALGORITHMS[name]()):
        actual = references(False, phases)
        assert all(
            phases[item.index] == phase
            for item, phase in zip(actual, phases, strict=True)
        )
