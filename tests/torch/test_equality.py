"""A problem of PyTorch has the trajectory of the same problem in JAX."""

import jax
import numpy as np
import pytest
import torch

from fedbilevel import NoUploadsError, Simulation, UniformSample, run
from fedbilevel.mathematics import keys
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.torch import TensorDevices, TensorSimulation
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines import federation
from tests.torch import tensors

pytestmark = pytest.mark.slow
BY_DAY = "LocalBSGVRM", "AutoFedBiO", "FedBiO, private lower level"
SETTINGS = {"participation": UniformSample(3), "rounds": 5}


def trajectory(name, engine, **settings):
    """Return all numbers of the server state, one array for each round."""
    rounds = run(
        tensors.problem(),
        ALGORITHMS[name](),
        tensors.devices(),
        *tensors.start(),
        **{"weights": federation.WEIGHTS, "engine": engine, **SETTINGS, **settings},
    )
    return [
        np.concatenate(
            [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(result.server)]
        )
        for result in rounds
    ]


@in_tiers(quick=(), check=BY_DAY)
def test_both_libraries_have_one_trajectory(name):
    expected = federation.trajectory(name, Simulation(), **SETTINGS)
    for vectorised in (True, False):
        numbers = trajectory(name, TensorSimulation(vectorised))
        for ours, other in zip(numbers, expected, strict=True):
            np.testing.assert_allclose(ours, other, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3


@pytest.mark.parametrize("seed", [0, 7, 2**31])
def test_keys_on_the_host_are_those_of_jax(seed):
    ours, other = HostKey.of(seed), jax.random.key(seed)
    for number in (0, 5, 2**32 - 1):
        ours = ours.fold_in(number)
        other = jax.random.fold_in(other, np.uint32(number))
        np.testing.assert_array_equal(ours.words, jax.random.key_data(other))
    for one, two in zip(ours.split(3), jax.random.split(other, 3), strict=True):
        np.testing.assert_array_equal(one.words, jax.random.key_data(two))
    for below in (1, 2, 37, 60_000, 2**31 - 1):
        drawn = jax.random.randint(other, (4, 5), 0, below, "int32")
        np.testing.assert_array_equal(ours.integers((4, 5), below), drawn)
    drawn = jax.random.normal(other, (3, 7), "float64")
    np.testing.assert_allclose(ours.normals((3, 7)), drawn, rtol=1e-12, atol=1e-14)
    assert int(keys.integer(ours, 1000)) == int(keys.integer(other, 1000))


def test_keys_of_many_devices_are_those_of_each():
    together = HostKey.of(3).fold_in(np.arange(4)).fold_in(9)
    sizes = np.array([3, 8, 5, 1])
    rows = together.integers((2, 6), sizes)
    for device, size in enumerate(sizes):
        alone = HostKey.of(3).fold_in(device).fold_in(9)
        np.testing.assert_array_equal(rows[device], alone.integers((2, 6), size))


@pytest.mark.parametrize("name", KINDS[:1])
def test_costs_are_those_of_jax(name):
    (first,) = run(
        quadratic.problem(),
        ALGORITHMS[name](),
        federation.in_memory(),
        *federation.START,
        rounds=1,
        weights=federation.WEIGHTS,
    )
    (other,) = run(
        tensors.problem(),
        ALGORITHMS[name](),
        tensors.devices(),
        *tensors.start(),
        rounds=1,
        weights=federation.WEIGHTS,
        engine=TensorSimulation(),
    )
    assert other.costs[:3] == first.costs[:3]


def test_a_device_whose_numbers_are_not_finite_is_excluded():
    devices = federation.held()
    devices[2].lower.matrix[:] = np.nan
    settings = {"rounds": 1, "participation": UniformSample(5)}
    healthy = trajectory("FedBiO", TensorSimulation(), **settings)
    assert np.isfinite(healthy[-1]).all()
    broken = run(
        tensors.problem(),
        ALGORITHMS["FedBiO"](),
        TensorDevices([tensors.tensors(each) for each in devices]),
        *tensors.start(),
        rounds=1,
        engine=TensorSimulation(),
    )
    (result,) = broken
    assert result.reports[0].excluded.tolist() == [2]
    assert torch.isfinite(result.x).all()


def test_a_run_without_any_upload_ends_with_the_reason():
    devices = federation.held()
    for device in devices:
        device.lower.matrix[:] = np.nan
    broken = run(
        tensors.problem(),
        ALGORITHMS["FedBiO"](),
        TensorDevices([tensors.tensors(each) for each in devices]),
        *tensors.start(),
        rounds=1,
        engine=TensorSimulation(),
    )
    with pytest.raises(NoUploadsError, match="0 of 5 uploads were accepted"):
        list(broken)
