"""Algorithms inside several wrappers, and wrappers of plug-ins."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fedbilevel import (
    AutoFedBiO,
    Clip,
    ExampleNoise,
    FedBiO,
    FedBiOAcc,
    Run,
    optax_optimiser,
    tune,
    with_server_optimiser,
    with_transforms,
)
from fedbilevel.algorithms import (
    AdjointRate,
    BatchSize,
    LearningRate,
    LocalSteps,
    LowerRate,
    UpperRate,
    innermost,
    register,
)
from fedbilevel.metrics import find_instabilities
from fedbilevel.metrics.untried_steps import check_known_steps, untried_steps
from fedbilevel.tuning import tuner
from fedbilevel.tuning.space import Space, search_space
from tests import quadratic
from tests.engines import federation

SGD = optax_optimiser("sgd", learning_rate=1.0)
PROBLEM = quadratic.problem()
OTHER_LENGTH = "AutoFedBiO decays its learning rates over rounds=7, but the run has"


@register
@dataclass(frozen=True)
class Passing:
    """A plug-in's wrapper that changes nothing.

    Attributes:
        algorithm: inner algorithm.
        rounds: a number that is no plan of the run.
    """

    algorithm: Any
    rounds: int = field(default=99, metadata={"static": True})

    def init(self, problem, x, y):
        return self.algorithm.init(problem, x, y)

    def opening(self, problem):
        return self.algorithm.opening(problem)

    def phases(self, problem):
        return self.algorithm.phases(problem)


@register
@dataclass(frozen=True)
class Named(Passing):
    """An algorithm whose field `algorithm` is a name."""

    def init(self, problem, x, y):
        return FedBiO(0.1).init(problem, x, y)


class Endless(FedBiO):
    """An algorithm whose property `algorithm` is the algorithm itself."""

    @property
    def algorithm(self):
        return self


@register
@dataclass(frozen=True)
class Renamed:
    """A plug-in: FedBiO, with other names of its fields."""

    pace: LearningRate
    far: UpperRate = 1.0
    near: LowerRate = 1.0
    across: AdjointRate = 1.0
    walks: LocalSteps = 1
    handful: BatchSize = 1

    @property
    def fedbio(self):
        lengths = self.pace, self.far, self.near, self.across
        return FedBiO(*lengths, local_steps=self.walks, batch_size=self.handful)

    def init(self, problem, x, y):
        return self.fedbio.init(problem, x, y)

    def opening(self, problem):
        return self.fedbio.opening(problem)

    def phases(self, problem):
        return self.fedbio.phases(problem)


@register
@dataclass(frozen=True)
class Nudged(FedBiO):
    """FedBiO with a number that no diagnosis knows."""

    nudge: float = 0.5


def run_of(algorithm: Any, rounds: int = 3) -> Run:
    inputs = PROBLEM, algorithm, federation.in_memory(), *federation.START
    return Run(*inputs, rounds=rounds)


WRAPPERS = [
    lambda algorithm: algorithm,
    lambda algorithm: with_transforms(algorithm, Clip(1.0)),
    Passing,
    lambda algorithm: Passing(with_transforms(Passing(algorithm), Clip(1.0))),
]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_the_length_of_a_run_is_compared_with_the_plan_inside(wrap, caplog):
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        run_of(wrap(AutoFedBiO(7))).start()
    assert [OTHER_LENGTH in message for message in caplog.messages] == [True]
    caplog.clear()
    run_of(wrap(AutoFedBiO(3))).start()
    # A field `rounds` of another meaning is no plan.
    run_of(wrap(Passing(FedBiO(0.1)))).start()
    assert not caplog.messages


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_search_space_has_the_batches_and_steps_inside(wrap, monkeypatch):
    sizes, steps = [], []

    def curvature(*inputs: Any, batch_size: int, **others: Any) -> float:
        sizes.append(batch_size)
        return 1.0

    def space(algorithm: Any, **others: Any) -> Space:
        steps.append(others["steps"])
        return Space(algorithm, ())

    monkeypatch.setattr(tuner, "batch_curvature", curvature)
    monkeypatch.setattr(tuner, "search_space", space)
    fedbio = FedBiO(0.1, batch_size=64, local_steps=5)
    for algorithm in (fedbio, Renamed(0.1, handful=64, walks=5)):
        tuner.space_for(run_of(wrap(with_server_optimiser(algorithm, SGD)), rounds=40))
    assert (sizes, steps) == ([64, 64], [200, 200])


def test_a_wrapper_of_itself_is_refused():
    with pytest.raises(ValueError, match="Endless has more than 100 algorithms"):
        innermost(Passing(Endless(0.1)))


def in_two_wrappers(algorithm: Any) -> Any:
    return with_transforms(with_server_optimiser(algorithm, SGD), Clip(1e6))


def renamed(setting: str) -> str:
    """Return the name in `Renamed` of a setting of FedBiO."""
    names = {"upper_rate": "far", "lower_rate": "near", "adjoint_rate": "across"}
    owner, dot, name = setting.rpartition(".")
    return owner + dot + names.get(name, name)


@pytest.mark.slow
def test_steps_of_a_plug_in_are_diagnosed_as_those_of_fedbio():
    expected, actual = (
        find_instabilities(
            run_of(in_two_wrappers(algorithm)),
            *federation.START,
            rounds=4,
            seconds=600.0,
        )
        for algorithm in (FedBiO(0.5, 1.0, 9.0, 9.0), Renamed(0.5, 1.0, 9.0, 9.0))
    )
    assert [item.setting for item in expected] == ["lower_rate", "adjoint_rate"]
    for old, new in zip(expected, actual, strict=True):
        assert new.setting == renamed(old.setting)
        assert (new.role, new.value, new.cure) == (old.role, old.value, old.cure)
        assert f"pace · {new.setting} = " in new.evidence


def test_settings_of_a_plug_in_have_the_ranges_of_fedbio():
    expected, actual = (
        search_space(in_two_wrappers(algorithm), curvature=3.0, steps=9)
        for algorithm in (FedBiO(0.1, 2.0), Renamed(0.1, 2.0))
    )
    assert len(expected.settings) == 3
    for old, new in zip(expected.settings, actual.settings, strict=True):
        assert new == old._replace(name=renamed(old.name))
    assert len(actual.proposals) == len(expected.proposals) == 5


@pytest.mark.nightly
def test_settings_of_a_plug_in_are_tuned_as_those_of_fedbio():
    expected, actual = (
        tune(run_of(in_two_wrappers(algorithm), rounds=4), trials=3, seeds=[0])
        for algorithm in (
            FedBiO(0.1, local_steps=2, batch_size=2),
            Renamed(0.1, walks=2, handful=2),
        )
    )
    assert list(map(renamed, expected.best.settings)) == [*actual.best.settings]
    for old, new in zip(expected.trials, actual.trials, strict=True):
        assert [*old.settings.values()] == [*new.settings.values()]
        assert (old.score, len(old.settings)) == (new.score, 3)


def test_settings_inside_a_wrapper_of_a_plug_in_are_searched():
    space = search_space(Passing(FedBiO(0.5)), curvature=1.0, steps=9)
    assert [item.name for item in space.settings] == [
        "algorithm.upper_rate",
        "algorithm.lower_rate",
        "algorithm.adjoint_rate",
    ]


def test_an_optimiser_finds_variance_reduction_inside_a_wrapper():
    # The estimates belong to the x before the optimiser's step.
    optimised = with_server_optimiser(Passing(FedBiOAcc(0.1)), SGD)
    state, _ = optimised.init(PROBLEM, 3.0, 1.0)
    assert state.inner.origin == 3.0
    state, _ = with_server_optimiser(Passing(optimised), SGD).init(PROBLEM, 3.0, 1.0)
    assert state.inner.inner.origin == 3.0


def test_a_field_algorithm_of_another_meaning_is_no_inner_algorithm():
    named = Named("fast")
    assert innermost(named) is named


def test_steps_of_unknown_names_are_reported_and_not_called_right():
    with pytest.raises(ValueError, match=r"AutoFedBiO declares no step size of y"):
        check_known_steps(with_transforms(AutoFedBiO(9), Clip(1.0)))
    with pytest.raises(
        ValueError, match="the effect of Passing on the steps of FedBiO"
    ):
        check_known_steps(Passing(FedBiO(0.1)))
    twice = with_server_optimiser(with_server_optimiser(FedBiO(0.1), SGD), SGD)
    with pytest.raises(ValueError, match="several server optimisers"):
        check_known_steps(twice)
    nudged = with_server_optimiser(replace(Nudged(0.1), adjoint_radius=2.0), SGD)
    check_known_steps(nudged)
    assert untried_steps(nudged) == ("nudge",)


def test_a_declaration_that_fails_is_not_missing():
    @register
    @dataclass(frozen=True)
    class Broken(FedBiO):
        @property
        def conflicts(self):
            raise AttributeError("a name with a typing error")

    with pytest.raises(AttributeError, match="a name with a typing error"):
        with_transforms(Broken(0.1), ExampleNoise(1.0, 1.0))
