"""Subcommands that select types: every type, anywhere among the options."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fedbilevel import FedBiO, LocalBSGM, NeumannSeries
from fedbilevel.algorithms import register
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.schema import (
    Auto,
    Evaluation,
    Experiment,
    Sharded,
    Tracking,
)
from fedbilevel.experiments.schema.registry import TABLES, list_types
from fedbilevel.problems import Cleaning, Regularisation
from fedbilevel.usage import UsageError

EXPERIMENT = Experiment(FedBiO(0.1, local_steps=7), problem=Regularisation(0.5))
QUICK = {"LocalBSGM", "FedBiO", "Cleaning", "CustomProblem", "Sharded"}
EVERY = [
    pytest.param(table, cls, marks=() if name in QUICK else pytest.mark.slow)
    for table in TABLES
    for name, cls in list_types(table).items()
]
REQUIRED = {
    "LocalBSGM": "--algorithm.hypergradient.terms 3 --algorithm.hypergradient.scale 1",
    "LocalBSGVRM": "--algorithm.hypergradient.terms 3 "
    "--algorithm.hypergradient.scale 1",
    "FedNest": "--algorithm.series.terms 3 --algorithm.series.scale 1",
    "LFedNest": "--algorithm.hypergradient.terms 3 --algorithm.hypergradient.scale 1",
    "CustomProblem": "--problem.file custom.py",
}


def changed(arguments: str) -> Experiment:
    return with_overrides(EXPERIMENT, arguments.split(), "fedbilevel run")


@pytest.mark.nightly
@pytest.mark.parametrize(("table", "cls"), EVERY)
def test_every_type_is_selected_by_its_class_in_any_case(table, cls):
    more = REQUIRED.get(cls.__name__, "")
    if table == "algorithm" and cls is not Auto:
        more += " --algorithm.learning-rate 0.3"
    for subcommand in (f"{table}:{cls.__name__.lower()}", f"{table}:{cls.__name__}"):
        result = changed(f"{subcommand} {more}")
        assert type(getattr(result, table)) is cls
        others = [name for name in TABLES if name != table]
        assert all(
            getattr(result, name) == getattr(EXPERIMENT, name) for name in others
        )


def test_options_may_be_before_and_after_a_subcommand():
    for arguments in (
        "engine:Sharded --rounds 5 --engine.cores 2 --algorithm.local-steps 9",
        "--algorithm.local-steps 9 --engine.cores 2 engine:Sharded --rounds 5",
    ):
        result = changed(arguments)
        assert result.engine == Sharded(cores=2)
        assert result.rounds == 5
        assert result.algorithm == FedBiO(0.1, local_steps=9)
        assert result.problem == Regularisation(0.5)


def test_two_subcommands_at_once():
    result = changed(
        "problem:cleaning algorithm:LocalBSGM --algorithm.learning-rate 0.2 "
        "--algorithm.hypergradient.terms 4 --algorithm.hypergradient.scale 0.3"
    )
    assert result.problem == Cleaning()
    assert result.algorithm == LocalBSGM(0.2, NeumannSeries(4, 0.3))


def test_a_colon_in_a_value_is_no_subcommand():
    result = changed("--algorithm.learning-rate 0.06 --tracking.mlflow http://host:1")
    assert result.algorithm == FedBiO(0.06, local_steps=7)
    assert result.tracking == Tracking(mlflow="http://host:1")


def test_an_option_without_a_value_empties_a_list():
    measured = replace(EXPERIMENT, evaluation=Evaluation(metrics=("lower_error",)))
    arguments = ["--evaluation.metrics", "--rounds", "3"]
    result = with_overrides(measured, arguments, "fedbilevel run")
    assert (result.evaluation.metrics, result.rounds) == ((), 3)


@register
@dataclass(frozen=True)
class Paired(FedBiO):
    """A plug-in with a setting of two types."""

    pair: tuple[int, str] = field(default=(1, "a"), metadata={"static": True})


def test_values_of_several_types_have_a_parser_each():
    experiment = Experiment(Paired(0.1))
    arguments = ["--algorithm.pair", "7", "b"]
    result: Any = with_overrides(experiment, arguments, "fedbilevel run").algorithm
    assert result.pair == (7, "b")
    for wrong, message in (
        (["b", "7"], "pair is 'b'. Give a whole number"),
        (["7"], "pair has another number of values. Give 2"),
    ):
        with pytest.raises(UsageError, match=message):
            with_overrides(experiment, [arguments[0], *wrong], "fedbilevel run")


def test_a_negative_number_with_an_exponent_is_a_value():
    with pytest.raises(UsageError, match=r"learning-rate: give .*not -0.001"):
        changed("--algorithm.learning-rate -1e-3")
