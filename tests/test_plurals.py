"""Messages have nouns in the singular after the number 1."""

import pytest

from fedbilevel import FedBiO, Trial, UniformSample
from fedbilevel.commands.tuning_progress import lines_of
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.run import prepare_run, run_of
from fedbilevel.experiments.run_directory.failures import Failure
from fedbilevel.experiments.schema import Experiment, FederationSettings, Partition
from fedbilevel.experiments.tuning import Goal, promise
from fedbilevel.tuning.halving import Rung
from fedbilevel.tuning.tuner import TuningProgress, TuningResult

ONE_DEVICE = Partition(devices=1)


def test_errors_about_one_device():
    with pytest.raises(ValueError, match=r"but there is 1 device\. Pass"):
        UniformSample(2)(0, 0, 1)
    experiment = Experiment(FedBiO(0.1), participants=2, partition=ONE_DEVICE)
    with pytest.raises(ValueError, match=r"but there is 1 device\. Give"):
        run_of(experiment, prepare_run(experiment))


def test_errors_about_one_site():
    experiment = Experiment(
        FedBiO(0.1), partition=ONE_DEVICE, federation=FederationSettings(quorum=2)
    )
    with pytest.raises(ValueError, match="but there is 1 site; give"):
        sites_of(experiment)


def test_one_round_setting_and_seed():
    assert str(Failure(1, "why")).startswith("last measured after 1 round: ")
    best = Trial(0, 0, {"upper_rate": 1.0}, {1: (0.25,)})
    progress = TuningProgress(0, 1, Rung(1, 1, 1), 1, 1, (best,))
    assert lines_of(progress, Goal())["generation"] == "1 of 1, 1 setting for 1 round"
    assert "after 1 round:" in lines_of(progress, Goal())["best"]
    result = TuningResult(FedBiO(0.1), best, best, (best,), {}, (0,))
    assert "after 1 round, the median of 1 seed; " in promise(result, Goal())
