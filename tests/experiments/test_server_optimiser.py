"""An experiment file may name an optimiser of optax for the server."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from fedbilevel import FedBiO, optax_optimiser, optax_schedule, with_server_optimiser
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.schema import Experiment

ADAM = optax_optimiser("adam", learning_rate=0.01, b2=0.99)
FILE = """
server_optimiser = {name = "adam", learning_rate = 0.01, b2 = 0.99}
[algorithm]
name = "FedBiO"
learning_rate = 0.1
"""


def read(text: str, directory: Path) -> Experiment:
    file = directory / "experiment.toml"
    file.write_text(text)
    return read_experiment(file)


def test_a_file_names_an_optimiser_of_optax(tmp_path):
    experiment = read(FILE, tmp_path)
    assert experiment == Experiment(FedBiO(0.1), server_optimiser=ADAM)
    assert experiment.federated_algorithm == with_server_optimiser(FedBiO(0.1), ADAM)
    assert experiment.title == "Regularisation by FedBiO with adam"


def test_the_same_optimiser_may_be_a_separate_table(tmp_path):
    text = """
    [algorithm]
    name = "FedBiO"
    learning_rate = 0.1
    [server_optimiser]
    name = "adam"
    b2 = 0.99
    learning_rate = 0.01
    """
    assert read(text, tmp_path).server_optimiser == ADAM


@pytest.mark.parametrize(
    "optimiser",
    [
        None,
        ADAM,
        optax_optimiser("sgd", learning_rate=1, momentum=0.9, nesterov=True),
        optax_optimiser(
            "lion",
            learning_rate=optax_schedule(
                "cosine_decay_schedule", init_value=0.1, decay_steps=9
            ),
        ),
    ],
    ids=["none", "adam", "sgd", "schedule"],
)
def test_an_optimiser_that_is_written_reads_the_same(optimiser, tmp_path):
    experiment = Experiment(FedBiO(0.1), server_optimiser=optimiser)
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment


def test_the_command_line_names_another_or_none(tmp_path):
    experiment = read(FILE, tmp_path)
    options = ["--server-optimiser", '{name = "yogi", learning_rate = 0.1}']
    changed = with_overrides(experiment, options, "fedbilevel run")
    assert changed.server_optimiser == optax_optimiser("yogi", learning_rate=0.1)
    without = with_overrides(
        experiment, ["--server-optimiser", "None"], "fedbilevel run"
    )
    assert without == Experiment(FedBiO(0.1))
    other = with_overrides(experiment, ["--rounds", "3"], "fedbilevel run")
    assert other.server_optimiser == ADAM


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"adam"',
            '"adm"',
            "line 2: server_optimiser.name: optax has no optimiser 'adm'; ",
        ),
        ("b2", "b3", "adam of optax has no argument b3; choose one of b1, b2"),
        ("learning_rate = 0.01, ", "", "adam of optax needs the argument learning_rat"),
        ("0.99", '"a"', 'server_optimiser.b2: give a number, not "a"'),
        ("0.99", "nan", "give a finite number, not nan"),
        ('name = "adam", ', "", "give the name of an optax optimiser"),
    ],
)
def test_a_mistake_is_named_with_its_cure(old, new, message, tmp_path):
    with pytest.raises(ExperimentError, match=message):
        read(FILE.replace(old, new, 1), tmp_path)


@pytest.mark.slow
def test_an_optimiser_for_vectors_and_matrices_alone_is_taken():
    optimiser = optax_optimiser("sm3", learning_rate=0.5)
    x = jnp.ones(3)
    moved, _ = optimiser.step(x, optimiser.init(x), x)
    assert bool(jnp.all(moved < x))
    # An optimiser that needs more than a gradient cannot be used on the server.
    with pytest.raises(ValueError, match=r"lbfgs of optax rejects its arguments"):
        optax_optimiser("lbfgs", learning_rate=0.5)
