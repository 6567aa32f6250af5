"""A job names classes by their registered names, never by an import path."""

import sys
from dataclasses import dataclass

import pytest

from fedbilevel import FedBiO
from fedbilevel.deployment.job_files import prepare_for_job, read_job_experiment
from fedbilevel.experiments.schema import Experiment

PLACE = "tests.flare.imported_by_no_job:Anything"


@dataclass(frozen=True)
class Unregistered(FedBiO):
    """An algorithm without an entry point."""


@pytest.mark.parametrize("table", ["algorithm", "problem", "server_optimiser"])
def test_a_site_imports_nothing_that_a_job_names(table, tmp_path):
    other = "" if table == "algorithm" else 'algorithm = "auto"'
    (tmp_path / "experiment.toml").write_text(
        f'{other}\n[{table}]\nname = "{PLACE}"\nlearning_rate = 0.1'
    )
    with pytest.raises(ValueError, match=f"group fedbilevel.{table}s"):
        read_job_experiment(tmp_path, tmp_path, tmp_path)
    assert PLACE.partition(":")[0] not in sys.modules


def test_a_class_without_a_name_does_not_travel():
    with pytest.raises(ValueError, match="test_job_files:Unregistered"):
        prepare_for_job(Experiment(Unregistered(0.1)))
