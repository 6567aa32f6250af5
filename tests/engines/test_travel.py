"""The distance limit: uploads are compared with that of the median device."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from fedbilevel import (
    BilevelProblem,
    DebugSimulation,
    Engine,
    FedBiO,
    FederatedAlgorithm,
    InMemoryDevices,
    Limits,
    LocalExamples,
    Sharded,
    Simulation,
    run,
    with_server_optimiser,
)
from fedbilevel.algorithms import map_phases
from fedbilevel.engines.limits import reach_of
from fedbilevel.federation import EnrolledDevices, Federation
from fedbilevel.federation.in_process import InProcess
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, by_day, in_tiers
from tests.federation.sites import sites_holding
from tests.waiting import HANG

pytestmark = pytest.mark.slow

DEVICES, ROUNDS, FAR = 7, 3, 3
PROBLEM = quadratic.problem()
HELD = quadratic.devices(DEVICES, per_device=2, noise=0.3)
START = np.linspace(-1.0, 1.0, quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)
NEAR = Limits(distance=10.0)


def upper_median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_the_reach_is_a_multiple_of_the_median_of_those_allowed(count):
    generator = np.random.default_rng(count)
    gone = 10 ** generator.uniform(-3, 3, size=(3, count + 2))
    gone[1] = 0.0  # a variable that no device moves
    allowed = np.arange(count + 2) >= 2
    gone[:, :2] = np.nan
    lengths = np.sqrt((gone[:, 2:] ** 2).sum(axis=0))
    whole = upper_median(lengths.tolist())
    medians = [upper_median(gone[k, 2:].tolist()) for k in range(3)]
    expected = 4.0 * np.array([medians[0], whole, medians[2]])
    for library in (np, jnp):
        actual = reach_of(library, library.asarray(gone), library.asarray(allowed), 4.0)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_devices_that_do_not_move_exclude_nobody():
    gone = np.array([[0.0, 0.0, 0.0, 5.0]])
    assert reach_of(np, gone, np.ones(4, bool), 10.0) == np.inf


class PoisonedUpper(NamedTuple):
    """Upper examples, and numbers that their device adds to its uploads."""

    target: np.ndarray
    shift: np.ndarray
    added: np.ndarray


@jax.tree_util.register_static
class Poisoned:
    """An algorithm whose devices add numbers of their data to their uploads."""

    def __init__(self, inner: FederatedAlgorithm) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def init(self, problem: Any, x: Any, y: Any) -> Any:
        return self.inner.init(problem, x, y)

    def opening(self, problem: Any) -> Any:
        return map_phases(self._poisoned, self.inner.opening(problem))

    def phases(self, problem: Any) -> Any:
        return map_phases(self._poisoned, self.inner.phases(problem))

    def _poisoned(self, phase: Any) -> Any:
        if not phase.is_compared:  # not affected by the limit
            return phase

        def start(downlink: Any, private: Any, data: Any, key: Any) -> Any:
            (batch,) = data.upper.draw(key, 1, draws=1)
            return phase.start(downlink, private, data, key), batch.added[0]

        def finish(carry: Any, downlink: Any, key: Any) -> Any:
            upload, state, info = phase.finish(carry[0], downlink, key)
            return jax.tree.map(lambda leaf: leaf + carry[1], upload), state, info

        return phase._replace(
            start=start,
            step=lambda carry, data, key: (phase.step(carry[0], data, key), carry[1]),
            finish=finish,
        )


def holding(added: float) -> list[LocalExamples]:
    held = []
    for number, local in enumerate(HELD):
        mine = np.full(2, added if number == FAR else 0.0)
        held.append(
            local._replace(
                upper=PoisonedUpper(local.upper.target, local.upper.shift, mine)
            )
        )
    return held


ENGINES: dict[str, Engine] = {
    "one chunk": Simulation(chunk_size=DEVICES),
    "chunks": Simulation(chunk_size=2),
    "debug": DebugSimulation(),
    "shards": Sharded(Mesh(np.array(jax.devices()[:2]), ("shards",)), chunk_size=4),
    "shards and chunks": Sharded(
        Mesh(np.array(jax.devices()[:2]), ("shards",)), chunk_size=1
    ),
}


def points(
    algorithm: FederatedAlgorithm, engine: str, added: float, without: bool
) -> list[Any]:
    """Return x after each round, with or without the device that moves too far."""
    held = holding(added)
    weights = np.where(np.arange(DEVICES) == FAR, 0.0 if without else 1.0, 1.0)
    initial: dict[str, Any] = {"rounds": ROUNDS, "weights": weights, "limits": NEAR}
    poisoned = Poisoned(algorithm)
    if engine == "federation":
        sites = sites_holding(held, PROBLEM, poisoned)
        enrolled = EnrolledDevices(
            {name: site.enrolment for name, site in sites.items()}, form=held[0]
        )
        engine_of_sites = Federation(
            InProcess(sites), enrolled, run="first", timeout=HANG
        )
        result = run(
            PROBLEM, poisoned, enrolled, *START, engine=engine_of_sites, **initial
        )
    else:
        devices = InMemoryDevices(held)
        result = run(
            PROBLEM, poisoned, devices, *START, engine=ENGINES[engine], **initial
        )
    actual = []
    for item in result:
        phases = algorithm.phases(PROBLEM)
        if not item.number:
            phases = algorithm.opening(PROBLEM) or phases
        assert (FAR in item.participants) == (
            not phases[-1].is_compared and not without
        )
        actual.append(np.asarray(item.x))
    return actual


@pytest.mark.nightly
# By day the most different engines. The uncompiled one takes half of the time.
@pytest.mark.parametrize(
    "engine",
    by_day([*ENGINES, "federation"], "one chunk", "shards and chunks", "federation"),
)
def test_who_goes_too_far_is_absent_on_every_engine(engine):
    algorithm = FedBiO(0.1, local_steps=2)
    expected = points(algorithm, "one chunk", 1e4, without=True)
    np.testing.assert_allclose(
        points(algorithm, engine, 1e4, without=False), expected, rtol=0, atol=1e-12
    )


@pytest.mark.nightly
@in_tiers(quick=(), check=KINDS)
def test_every_algorithm_says_how_far_its_uploads_go(name):
    algorithm = ALGORITHMS[name]()
    if name.startswith("two exchanges"):
        pytest.skip("says nothing of how far its uploads go")
    expected = points(algorithm, "one chunk", 1e4, without=True)
    actual = points(algorithm, "one chunk", 1e4, without=False)
    if (
        name == "AutoFedBiO"
    ):  # its first round measures curvatures, which may have any size
        return
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_small_poison_in_one_variable_alone_is_seen():
    # It would be a small part of the distance in all variables together.
    problem = BilevelProblem(
        lambda x, y, batch: 1e-3 * quadratic.upper_loss(x, y, batch),
        quadratic.lower_loss,
    )
    sent: list[Any] = []
    for limits in (Limits(), NEAR):
        algorithm = Poisoned(with_server_optimiser(FedBiO(0.1), optax.sgd(1.0)))
        *_, last = run(
            problem,
            algorithm,
            InMemoryDevices(holding(0.5)),
            *START,
            rounds=3,
            limits=limits,
        )
        sent.append(last.reports[-1].excluded.tolist())
    assert sent == [[], [FAR]]


@pytest.mark.nightly
def test_honest_devices_count_however_the_data_differ():
    for result in run(
        PROBLEM, FedBiO(0.1), InMemoryDevices(HELD), *START, rounds=20, limits=NEAR
    ):
        assert not len(result.reports[0].excluded)
