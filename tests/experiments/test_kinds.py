"""Kinds on the command line: every one can be named, anywhere among the options."""

import pytest

from fedbilevel import FedBiO, LocalBSGM, NeumannSeries
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.type_options import word_of
from fedbilevel.experiments.schema import (
    Auto,
    Experiment,
    Sharded,
    Tracking,
)
from fedbilevel.experiments.schema.registry import TABLES, list_types
from fedbilevel.problems import Cleaning, Regularisation

ASKED = Experiment(FedBiO(0.1, local_steps=7), problem=Regularisation(0.5))
EVERY = [(table, kind) for table in TABLES for kind in list_types(table).values()]
NEEDED = {
    "LocalBSGM": "--algorithm.hypergradient.terms 3 --algorithm.hypergradient.scale 1",
    "LocalBSGVRM": "--algorithm.hypergradient.terms 3 "
    "--algorithm.hypergradient.scale 1",
    "FedNest": "--algorithm.series.terms 3 --algorithm.series.scale 1",
    "LFedNest": "--algorithm.hypergradient.terms 3 --algorithm.hypergradient.scale 1",
    "CustomProblem": "--problem.file own.py",
}


def changed(words: str) -> Experiment:
    return with_overrides(ASKED, words.split(), "fedbilevel run")


@pytest.mark.parametrize(("table", "kind"), EVERY)
def test_every_kind_can_be_named_by_its_class_or_by_tyros_word(table, kind):
    more = NEEDED.get(kind.__name__, "")
    if table == "algorithm" and kind is not Auto:
        more += " --algorithm.learning-rate 0.3"
    for word in (word_of(table, kind), f"{table}:{kind.__name__}"):
        found = changed(f"{word} {more}")
        assert type(getattr(found, table)) is kind
        others = [name for name in TABLES if name != table]
        assert all(getattr(found, one) == getattr(ASKED, one) for one in others)


def test_options_may_stand_before_and_after_a_kind():
    for words in (
        "engine:Sharded --rounds 5 --engine.cores 2 --algorithm.local-steps 9",
        "--algorithm.local-steps 9 --engine.cores 2 engine:Sharded --rounds 5",
    ):
        found = changed(words)
        assert found.engine == Sharded(cores=2)
        assert found.rounds == 5
        assert found.algorithm == FedBiO(0.1, local_steps=9)
        assert found.problem == Regularisation(0.5)


def test_two_kinds_at_once():
    found = changed(
        "problem:cleaning algorithm:LocalBSGM --algorithm.learning-rate 0.2 "
        "--algorithm.hypergradient.terms 4 --algorithm.hypergradient.scale 0.3"
    )
    assert found.problem == Cleaning()
    assert found.algorithm == LocalBSGM(0.2, NeumannSeries(4, 0.3))


def test_a_colon_in_a_value_is_no_kind():
    found = changed("--algorithm.learning-rate 0.06 --tracking.mlflow http://host:1")
    assert found.algorithm == FedBiO(0.06, local_steps=7)
    assert found.tracking == Tracking(mlflow="http://host:1")
