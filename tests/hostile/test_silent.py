"""Wrong inputs that were once accepted silently: each is an error with a cure."""

import shutil
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
    Run,
    sweep,
)
from fedbilevel.__main__ import main
from fedbilevel.atomic_write import atomic_replace
from fedbilevel.experiments.custom_problem import custom_task
from fedbilevel.experiments.run import run_experiment
from fedbilevel.experiments.run_directory.layout import CHECKPOINTS
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.outputs import CheckpointSettings
from fedbilevel.tracking.records import RECORDS


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


ONES = np.ones(4)
DEVICES = InMemoryDevices([LocalExamples(ONES, ONES)] * 2)


def test_every_seed_of_a_sweep_is_checked():
    algorithm = FedBiO(0.1)
    whole = Run(BilevelProblem(loss, loss), algorithm, DEVICES, 1.0, 0.0, rounds=1)
    with pytest.raises(ValueError, match="from 0 to 4294967295"):
        sweep(whole, [algorithm], seeds=[0, 2**32], measure=lambda server: server.x)


@pytest.mark.single_precision
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_whole_numbers_that_would_wrap_are_refused(number):
    numbers = np.array([0, number])
    message = rf"Device 1: lower examples .* {number}, which overflows int32"
    with pytest.raises(ValueError, match=message):
        InMemoryDevices(
            [
                LocalExamples(np.ones(2), np.array([0, 1])),
                LocalExamples(np.ones(2), numbers),
            ]
        )
    devices = OnDemandDevices(
        3, lambda device: LocalExamples(numbers, np.ones(1)), 2, 1
    )
    with pytest.raises(
        ValueError, match=rf"Device 2: upper .* {number}, which overflows int32"
    ):
        devices.cohort(np.array([2]))


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", ".hidden", ""])
def test_a_new_experiment_is_written_to_its_directory_only(name, tmp_path, capsys):
    inside = tmp_path / "inside"
    code = main(["new", name, "--ready", "cleaning", "--directory", str(inside)])
    assert code == 2
    assert "is not a file name. Give a name" in capsys.readouterr().err
    assert not [*tmp_path.rglob("*.toml")]


@pytest.mark.parametrize(
    "ends", ["sys.exit()", "sys.exit(3)", "raise SystemExit", "quit()"]
)
def test_a_problem_that_ends_the_program_is_named(ends, tmp_path):
    file = tmp_path / "ends.py"
    file.write_text(f"import sys\n\n{ends}\n")
    with pytest.raises(ValueError, match=r"ends.py, line 3 exits the program"):
        custom_task(file)
    file.write_text(f"import sys\n\ndef task():\n    {ends}\n")
    with pytest.raises(ValueError, match=r"ends.py, line 4 exits the program"):
        custom_task(file)
    assert sys.path[0] != str(tmp_path)


def test_a_link_that_awaits_a_file_is_not_followed(tmp_path):
    precious, file = tmp_path / "precious", tmp_path / "notes"
    precious.write_text("mine")
    (tmp_path / "unfinished-notes").symlink_to(precious)
    with atomic_replace(file) as unfinished:
        unfinished.write_text("new")
    assert precious.read_text() == "mine"
    assert file.read_text() == "new"
    assert not file.is_symlink()


@pytest.mark.single_precision
@pytest.mark.slow
def test_a_run_without_its_checkpoints_does_not_start_again(tmp_path):
    experiment = Experiment(
        FedBiO(0.1),
        rounds=4,
        checkpoints=CheckpointSettings(every=2),
    )
    list(run_experiment(experiment, tmp_path, resume=False))
    records = (tmp_path / RECORDS).read_text()
    shutil.rmtree(tmp_path / CHECKPOINTS)
    with pytest.raises(ValueError, match="has records of a run but no checkpoints"):
        list(run_experiment(experiment, tmp_path, resume=True))
    assert (tmp_path / RECORDS).read_text() == records
