"""Every algorithm has the same trajectory on every engine."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from fedbilevel import (
    Engine,
    LocalExamples,
    OnDemandDevices,
    Sharded,
    Simulation,
    UniformSample,
    run,
)
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, at_night, in_tiers
from tests.engines import federation
from tests.engines.starting import start_processes
from tests.waiting import HANG


def shards(count: int, chunk_size: int | None = None) -> Sharded:
    return Sharded(Mesh(np.array(jax.devices()[:count]), ("shards",)), chunk_size)


def assert_same(actual: list[np.ndarray], other: list[np.ndarray]) -> None:
    np.testing.assert_allclose(actual, other, rtol=0, atol=1e-10)


@in_tiers(quick=(), check=KINDS[1:])
def test_every_engine_gives_one_trajectory(name):
    expected = federation.trajectory(name, Simulation())
    engines: list[Engine] = [Simulation(chunk_size=3), shards(2)]
    for engine in engines:
        assert_same(expected, federation.trajectory(name, engine))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_size_of_chunks_and_mesh_gives_one_trajectory(name):
    expected = federation.trajectory(name, Simulation())
    engines: list[Engine] = [
        Simulation(chunk_size=1),
        shards(1),
        shards(4, chunk_size=1),
    ]
    for engine in engines:
        assert_same(expected, federation.trajectory(name, engine))


@pytest.fixture(scope="module")
def two_processes(request, tmp_path_factory) -> dict[str, list[np.ndarray]]:
    """Run the algorithms of selected tests in two processes of two devices each."""
    directory = tmp_path_factory.mktemp("processes")
    test = test_two_processes_of_two_shards_give_the_same
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "function", None) is test
    ]
    for process in start_processes(
        2, ["tests.engines.processes", str(directory), *names]
    ):
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 0, output
    return {
        name: list(np.load(directory / f"{number}.npy"))
        for number, name in enumerate(names)
    }


# By day the algorithm with several exchanges and private state; another is tested by
# day on two shards of one process, above.
@pytest.mark.process
@in_tiers(quick=(), check=KINDS[2:])
def test_two_processes_of_two_shards_give_the_same(name, two_processes):
    assert_same(federation.trajectory(name, Simulation()), two_processes[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*at_night("LocalBSGVRM"), KINDS[1]])
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


@pytest.mark.nightly
def test_more_devices_of_one_shard_than_a_program_has_room_for():
    # Two of eight devices usually participate, so there is room for two of each shard.
    examples = quadratic.devices(8, 3, 0.2)

    def choose(seed: int, number: int, count: int) -> np.ndarray:
        return np.arange(4, 8) if number else np.array([0, 5])

    settings = {
        "devices": OnDemandDevices(8, examples.__getitem__, 3, 3),
        "participation": choose,
        "weights": np.arange(1.0, 9.0),
    }
    name = "FedBiO, private lower level"
    expected = federation.trajectory(name, Simulation(), **settings)
    engine = shards(2, chunk_size=1)
    assert_same(expected, federation.trajectory(name, engine, **settings))


@pytest.mark.nightly
def test_a_run_may_begin_where_another_one_on_a_mesh_ended():
    settings: dict[str, Any] = {"rounds": 1, "engine": shards(2)}
    problem, devices = quadratic.problem(), federation.in_memory()
    algorithm = ALGORITHMS["LocalBSGM"]()
    (first,) = run(problem, algorithm, devices, *federation.START, **settings)
    (again,) = run(problem, algorithm, devices, first.x, first.y, **settings)
    (expected,) = run(
        problem, algorithm, devices, np.array(first.x), np.array(first.y), rounds=1
    )
    np.testing.assert_allclose(again.x, expected.x, rtol=0, atol=1e-10)


@pytest.mark.nightly
@pytest.mark.process
def test_processes_that_do_not_see_the_same_decide_alike(tmp_path):
    running = start_processes(2, ["tests.engines.quarrel", str(tmp_path)])
    output = [process.communicate(timeout=HANG)[0] for process in running]
    for process, lines in zip(running, output, strict=True):
        assert process.returncode == 0, lines
        # JAX's own messages, on the same stream, may have empty lines.
        assert re.findall(r"^resumed (\d)$", lines, re.MULTILINE) == ["2", "3"]
        first, second = re.findall(r"^end (\S+)$", lines, re.MULTILINE)
        assert first == second
        assert "refused The processes of this run have different" in lines


def test_a_mesh_with_another_axis_is_refused():
    with pytest.raises(ValueError, match="needs one axis named 'shards'"):
        Sharded(Mesh(np.array(jax.devices()[:2]), ("devices",)))
