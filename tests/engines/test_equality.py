"""One table: every algorithm on every engine, one trajectory."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from fedbilevel import (
    Engine,
    LocalExamples,
    Sharded,
    Simulation,
    UniformSample,
)
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def shards(count: int, chunk_size: int | None = None) -> Sharded:
    return Sharded(Mesh(np.array(jax.devices()[:count]), ("shards",)), chunk_size)


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


@every_algorithm
def test_every_engine_gives_one_trajectory(name):
    expected = federation.trajectory(name, Simulation())
    engines: list[Engine] = [
        Simulation(chunk_size=1),
        Simulation(chunk_size=3),
        shards(1),
        shards(2),
        shards(4, chunk_size=1),
    ]
    for engine in engines:
        assert_same(expected, federation.trajectory(name, engine))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> dict[str, list[np.ndarray]]:
    """Run all algorithms in two processes of two devices each."""
    folder = tmp_path_factory.mktemp("processes")
    for process in start_processes(
        2, ["tests.engines.processes", str(folder), *ALGORITHMS]
    ):
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
    return {
        name: list(np.load(folder / f"{number}.npy"))
        for number, name in enumerate(ALGORITHMS)
    }


def start_processes(count: int, module: list[str]) -> list[subprocess.Popen[str]]:
    """Start a module in so many processes that know each other, if more than one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = "--xla_backend_optimization_level=0"
    flags += " --xla_force_host_platform_device_count=2"
    running = []
    for process in range(count):
        place = {"PORT": str(port), "PROCESSES": str(count), "PROCESS": str(process)}
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", *module],
                env={
                    **os.environ,
                    "XLA_FLAGS": flags,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    **(place if count > 1 else {}),
                },
                cwd=Path(__file__).parent.parent.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return running


@every_algorithm
def test_two_processes_of_two_shards_give_the_same(name, two_processes):
    assert_same(federation.trajectory(name, Simulation()), two_processes[name])


@pytest.mark.parametrize("name", ["LocalBSGVRM", "FedBiO, private lower level"])
def test_samples_of_devices_loaded_on_demand_give_the_same(name):
    settings = {"participation": UniformSample(3), "rounds": 4}
    expected = federation.trajectory(name, Simulation(), **settings)
    loaded: set[int] = set()

    def load(device: int) -> LocalExamples:
        loaded.add(device)
        return federation.held()[device]

    for engine in (shards(2), shards(2, chunk_size=1)):
        on_demand = federation.trajectory(
            name, engine, devices=federation.on_demand(load), **settings
        )
        assert_same(expected, on_demand)
        assert_same(expected, federation.trajectory(name, engine, **settings))


def test_a_mesh_with_another_axis_is_refused():
    with pytest.raises(ValueError, match="whose one axis is named 'shards'"):
        Sharded(Mesh(np.array(jax.devices()[:2]), ("devices",)))
