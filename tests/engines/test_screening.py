"""Bad uploads are excluded and do not affect other devices."""

import logging
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedbilevel import (
    Checkpoints,
    DebugSimulation,
    Engine,
    FedBiO,
    InMemoryDevices,
    Limits,
    LocalBSGVRM,
    LocalExamples,
    NeumannSeries,
    NoUploadsError,
    Run,
    Sharded,
    Simulation,
    run,
    sweep,
)
from fedbilevel.algorithms import map_phases
from fedbilevel.engines.debug import DeviceError
from fedbilevel.engines.iteration import MOST_PENDING
from fedbilevel.engines.screening import acceptable
from tests import quadratic
from tests.algorithms.table import by_day

pytestmark = pytest.mark.slow

DEVICES, ROUNDS = 16, 12
NONSENSE = {2: np.nan, 7: np.inf, 11: 1e30}
START = np.linspace(-1.0, 1.0, quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)
ALGORITHMS = {
    "LocalBSGVRM": LocalBSGVRM(0.1, NeumannSeries(3, 0.15), local_steps=2),
    "private state": FedBiO(0.1, 0.3, 0.5, 0.4, local_steps=2, private_lower=True),
}


class PoisonedUpper(NamedTuple):
    """Upper examples, and numbers that their device adds to its uploads, by round."""

    target: np.ndarray
    shift: np.ndarray
    nonsense: np.ndarray


class PoisonedServer(NamedTuple):
    inner: Any
    number: Any

    @property
    def x(self):
        return self.inner.x

    @property
    def y(self):
        return self.inner.y


@jax.tree_util.register_static
@dataclass(frozen=True)
class Poisoned:
    """An algorithm whose devices add numbers of their data to their uploads."""

    inner: Any

    def init(self, problem, x, y):
        server, private = self.inner.init(problem, x, y)
        return PoisonedServer(server, jnp.array(0)), private

    def opening(self, problem):
        return map_phases(self._poisoned, self.inner.opening(problem))

    def phases(self, problem):
        return map_phases(self._poisoned, self.inner.phases(problem))

    def _poisoned(self, phase):
        def start(downlink, private, data, key):
            inner, number = downlink
            (batch,) = data.upper.draw(key, 1, draws=1)
            return phase.start(inner, private, data, key), batch.nonsense[0][number]

        def finish(carry, downlink, key):
            local, nonsense = carry
            upload, state, info = phase.finish(local, downlink[0], key)
            return jax.tree.map(lambda leaf: leaf + nonsense, upload), state, info

        def server(server, mean, key):
            inner = phase.server(server.inner, mean, key)
            return PoisonedServer(inner, server.number + 1)

        return phase._replace(
            broadcast=lambda server: (phase.broadcast(server.inner), server.number),
            start=start,
            step=lambda carry, data, key: (phase.step(carry[0], data, key), carry[1]),
            finish=finish,
            server=server,
        )


def poison() -> np.ndarray:
    """Return the number that each device adds in each round, from a seed."""
    added = np.zeros((DEVICES, ROUNDS))
    generator = np.random.default_rng(5)
    for device, value in NONSENSE.items():
        added[device, generator.choice(ROUNDS, size=4, replace=False)] = value
    return added


def devices(added: np.ndarray) -> InMemoryDevices:
    held = []
    for local, mine in zip(quadratic.devices(DEVICES, 3, 0.1), added, strict=True):
        rows = np.repeat(mine[None], 3, axis=0)
        upper = PoisonedUpper(local.upper.target, local.upper.shift, rows)
        held.append(LocalExamples(upper, local.lower))
    return InMemoryDevices(held)


ENGINES: dict[str, Engine] = {
    "simulation": Simulation(chunk_size=5),
    "sharded": Sharded(Mesh(np.array(jax.devices()[:2]), ("shards",)), chunk_size=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", by_day(ALGORITHMS, "private state"))
def test_a_poisoned_run_is_the_run_without_the_poisoned_uploads(name, engine, caplog):
    added = poison()
    algorithm = Poisoned(ALGORITHMS[name])
    settings: dict[str, Any] = {"rounds": ROUNDS, "limits": Limits(norm=1e6)}
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        poisoned = list(
            run(
                quadratic.problem(),
                algorithm,
                devices(added),
                *START,
                engine=ENGINES[engine],
                **settings,
            )
        )
    without = list(
        run(
            quadratic.problem(),
            algorithm,
            devices(np.zeros_like(added)),
            *START,
            participation=lambda seed, number, count: np.flatnonzero(
                added[:, number] == 0
            ),
            **settings,
        )
    )
    for item, other in zip(poisoned, without, strict=True):
        np.testing.assert_allclose(item.x, other.x, rtol=0, atol=1e-12)
        assert sorted(item.participants) == sorted(other.participants)
        left_out = np.flatnonzero(added[:, item.number])
        assert sorted(item.reports[0].excluded) == left_out.tolist()
        # Excluded devices have the same costs as the others.
        assert item.costs.samples >= other.costs.samples
    # A device is named when its count has doubled: in its first, second and fourth
    # excluded round, each with the counts until then.
    expected = [
        (number, device, number + 1, count)
        for device in NONSENSE
        for count, number in enumerate(np.flatnonzero(added[device]).tolist(), 1)
        if count != 3
    ]
    reports = [
        (int(number), int(device), int(rounds), int(count))
        for message in caplog.messages
        for number in re.findall(r"^Round (\d+), exchange 0: excluded", message)
        for device, count, rounds in re.findall(
            r"device (\d+) \(in (\d+) of its (\d+) rounds\)", message
        )
    ]
    assert sorted(reports) == sorted(expected)
    assert poisoned[-1].exclusions.devices == tuple(
        (device, 4, ROUNDS) for device in NONSENSE
    )


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_without_any_upload_stops_and_says_what_to_do(engine):
    added = np.zeros((DEVICES, ROUNDS))
    added[:, 4] = np.nan
    rounds = run(
        quadratic.problem(),
        Poisoned(ALGORITHMS["LocalBSGVRM"]),
        devices(added),
        *START,
        rounds=ROUNDS,
        engine=ENGINES[engine],
    )
    finished: list[Any] = []
    with pytest.raises(NoUploadsError, match=r"Round 4.* 0 of 16 uploads .* DebugSim"):
        finished.extend(rounds)
    # The state of the last good round is unchanged, and the run ends soon.
    np.testing.assert_array_equal(finished[4].x, finished[3].x)
    assert len(finished) <= 4 + 1 + MOST_PENDING


@pytest.mark.nightly
def test_the_error_names_the_newest_checkpoint(tmp_path):
    added = np.zeros((DEVICES, ROUNDS))
    added[:, 4] = np.nan
    with pytest.raises(NoUploadsError, match=r"The newest checkpoint has 3 rounds\."):
        list(
            run(
                quadratic.problem(),
                Poisoned(ALGORITHMS["LocalBSGVRM"]),
                devices(added),
                *START,
                rounds=ROUNDS,
                checkpoints=Checkpoints(tmp_path, every=3),
            )
        )


@pytest.mark.nightly
def test_who_leaves_early_is_still_told(caplog):
    added = np.zeros((DEVICES, ROUNDS))
    added[2, 3] = np.nan
    rounds = run(
        quadratic.problem(),
        Poisoned(ALGORITHMS["LocalBSGVRM"]),
        devices(added),
        *START,
        rounds=ROUNDS,
    )
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        for result in rounds:
            if result.number == 3:
                rounds.close()
                break
    assert caplog.messages == [
        "Round 3, exchange 0: excluded device 2 (in 1 of its 4 rounds): upload is not "
        "finite"
    ]


@pytest.mark.slow
def test_a_sweep_shows_a_run_that_would_have_stopped():
    held = quadratic.devices(2, 1, 0.1)
    devices, settings = InMemoryDevices(held), [FedBiO(0.1), FedBiO(1e200)]
    result = sweep(
        Run(quadratic.problem(), settings[0], devices, *START, rounds=6),
        settings,
        seeds=[0],
        measure=lambda server: server.x,
    )
    assert np.isfinite(result.measurements[0]).all()
    assert np.isnan(result.measurements[1, 0, -1]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_norm_is_that_of_the_whole_upload(dtype):
    generator = np.random.default_rng(0)
    parts = generator.normal(size=(5, 3)).astype(dtype), np.ones((5, 2, 2), dtype)
    norms = [
        np.sqrt(sum(np.sum(part[k].astype(float) ** 2) for part in parts))
        for k in range(5)
    ]
    limit = float(np.median(norms))
    everyone = jnp.ones(5, bool)
    uploads = tuple(map(jnp.asarray, parts))
    actual = acceptable(uploads, {}, everyone, Limits(limit * (1 + 1e-3)))
    assert actual.sum() == 3
    np.testing.assert_array_equal(actual, np.array(norms) <= limit * (1 + 1e-3))
    assert acceptable(uploads, {}, everyone, Limits()).all()


@pytest.mark.single_precision
def test_squares_beyond_the_range_do_not_hide_the_norm():
    uploads = jnp.array([[1e30, 1e30], [1e-30, 1e-30], [0.0, 0.0]], jnp.float32)
    everyone = jnp.ones(3, bool)
    for limit, first in ((2e30, True), (1.4e30, False), (None, True)):
        actual = acceptable(uploads, {}, everyone, Limits(limit))
        assert actual.tolist() == [first, True, True]


@pytest.mark.slow
def test_warnings_and_errors_have_the_names_of_the_devices(caplog):
    added = np.zeros((DEVICES, 1))
    added[2] = np.nan
    held = devices(added)
    named = InMemoryDevices({f"city {k}": held.local(k) for k in range(DEVICES)})
    arguments = quadratic.problem(), Poisoned(FedBiO(0.1)), named, *START
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        list(run(*arguments, rounds=1))
    assert caplog.messages == [
        "Round 0, exchange 0: excluded device city 2 (in 1 of its 1 rounds): upload is "
        "not finite"
    ]
    with pytest.raises(DeviceError, match="Device city 2, round 0"):
        list(run(*arguments, rounds=1, engine=DebugSimulation()))
