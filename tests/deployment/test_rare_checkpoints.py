"""Checkpoints must not be older than the device states that sites keep."""

import pytest

from fedbilevel import FedBiO, FedBiOAcc
from fedbilevel.deployment.server_computation import _refuse_rare_checkpoints
from fedbilevel.experiments.federation import model_of
from fedbilevel.experiments.schema import CheckpointSettings, Experiment


@pytest.mark.single_precision
@pytest.mark.parametrize(
    ("algorithm", "every", "fits"),
    [
        (FedBiO(0.1), 1000, True),  # Devices are stateless.
        (FedBiO(0.1, private_lower=True), 64, True),
        (FedBiO(0.1, private_lower=True), 65, False),
        (FedBiOAcc(0.1, private_lower=True), 65, False),
    ],
)
def test_checkpoints_are_as_frequent_as_sites_remember(algorithm, every, fits):
    experiment = Experiment(algorithm, checkpoints=CheckpointSettings(every=every))
    if fits:
        _refuse_rare_checkpoints(experiment, model_of(experiment))
        return
    with pytest.raises(ValueError, match=r"checkpoints.every is 65"):
        _refuse_rare_checkpoints(experiment, model_of(experiment))
