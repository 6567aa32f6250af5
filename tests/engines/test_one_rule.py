"""The rule of screening is the same in JAX, in NumPy, and on every engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    NoUploadsError,
    Phase,
    Sharded,
    SimFBO,
    Simulation,
    run,
)
from fedbilevel.data.examples import one_device
from fedbilevel.engines.debug import DeviceError
from fedbilevel.engines.preparation import canonical, participants_of, references
from fedbilevel.engines.protocol import Job, Moment, RunState, device_key
from fedbilevel.engines.screening import acceptable, is_acceptable
from fedbilevel.federation import EnrolledDevices, NoQuorumError
from fedbilevel.federation.site import compute_on_device
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines.federation import START
from tests.federation.sites import enrolled, federation, sites_holding

pytestmark = pytest.mark.slow

DEVICES, NOW = 2, Moment(0, 0)
HELD = quadratic.devices(DEVICES, per_device=2, noise=0.5)
PROBLEM = quadratic.problem()
GENTLE = BilevelProblem(
    lambda x, y, batch: 0.05 * quadratic.upper_loss(x, y, batch),
    lambda x, y, batch: 0.05 * quadratic.lower_loss(x, y, batch),
)


def plain_rule(upload: Any, info: Any, limit: float | None) -> bool:
    """Return the rule as docs/design.md states it, in double precision."""
    entries = np.concatenate([np.ravel(leaf).astype(float) for leaf in upload])
    reported = np.array([float(value) for value in info.values()])
    if not (np.isfinite(entries).all() and np.isfinite(reported).all()):
        return False
    largest = np.abs(entries).max()
    norm = largest * np.sqrt(np.sum((entries / (largest or 1.0)) ** 2))
    return limit is None or bool(norm <= limit)


def random_uploads(
    generator: np.random.Generator, dtype: Any, size: float, count: int
) -> list[tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]]:
    """Return uploads of norms near `size`, some of them not finite or too large."""
    drawn = []
    for _ in range(count):
        parts = [generator.normal(size=shape) for shape in ((3, 2), (5,), ())]
        norm = np.sqrt(sum(float(np.sum(part**2)) for part in parts))
        near = 10 ** generator.uniform(-6, 1) * generator.choice([-1, 1])
        wanted = size * max(1 + near, 0.01)
        with np.errstate(over="ignore"):
            upload = [np.array(part * wanted / norm, dtype) for part in parts]
        kind = generator.integers(5)
        if kind == 0:
            upload[1][generator.integers(5)] = generator.choice([np.nan, np.inf])
        info = {"local_steps": np.array(generator.integers(1, 1000), np.int32)}
        loss = generator.choice([1.0, 1e30, np.nan, -np.inf], p=[0.6, 0.2, 0.1, 0.1])
        drawn.append((tuple(upload), {**info, "loss": np.array(loss, dtype)}))
    return drawn


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-25, 1e-3, 8.0, 1e19, 1e30, None])
def test_both_array_libraries_follow_the_rule(dtype, size):
    generator = np.random.default_rng(3)
    uploads = random_uploads(generator, dtype, size or 8.0, count=150)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads)
    everyone = jnp.ones(len(uploads), bool)
    in_jax = acceptable(stacked[0], stacked[1], everyone, Limits(size))
    in_numpy = [is_acceptable(*upload, Limits(size)) for upload in uploads]
    # Norms differ from the limit by at least 1e-6, where single precision rounds.
    clear = [
        dtype == np.float64
        or plain_rule(*upload, size and size * (1 - 1e-5))
        == plain_rule(*upload, size and size * (1 + 1e-5))
        for upload in uploads
    ]
    expected = [plain_rule(*upload, size) for upload in uploads]
    assert sum(clear) > 120
    assert 20 < sum(expected) < 130
    np.testing.assert_array_equal(np.array(in_jax)[clear], np.array(expected)[clear])
    np.testing.assert_array_equal(np.array(in_numpy)[clear], np.array(expected)[clear])


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32, np.float64])
def test_an_upload_at_the_limit_and_extremes_of_its_type(dtype):
    information = jnp.finfo(dtype)
    largest, smallest = float(information.max), float(information.tiny)
    cases = [
        (np.array([3.0, 4.0], dtype), 5.0),
        (np.array([3.0, 4.0], dtype), 4.99),
        (np.array([largest, largest], dtype), None),
        (np.array([largest, 0.0], dtype), largest / 2),
        (np.array([smallest, 0.0], dtype), smallest / 2),
        (np.zeros(2, dtype), smallest),
        ((np.full(1, 1e-60), np.zeros(2, dtype)), 1e-50),
        ((np.full(1, 1e200), np.ones(2, dtype)), 1e190),
    ]
    everyone = jnp.array([True])

    def stacked(upload: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], upload)

    actual = [
        (
            is_acceptable(upload, {}, Limits(limit)),
            bool(acceptable(stacked(upload), {}, everyone, Limits(limit))[0]),
        )
        for upload, limit in cases
    ]
    wanted = [True, False, True, False, False, True, True, False]
    assert actual == [(item, item) for item in wanted]


class Federations(NamedTuple):
    """One run of an algorithm, prepared for every engine."""

    job: Job
    server: Any
    private: Any
    engines: dict[str, Engine]
    enrolled: EnrolledDevices

    def counted(self, name: str, limit: float | None) -> list[int]:
        """Return the devices whose uploads an engine accepts in the first exchange."""
        engine = self.engines[name]
        devices = self.enrolled if name == "federation" else self.job.devices
        job = replace(self.job, limits=Limits(limit), devices=devices)
        private = engine.private_states(self.private, DEVICES)
        job, state = engine.begin(job, RunState(self.server, private))
        everyone = participants_of(0, np.arange(DEVICES), np.ones(DEVICES))
        _, report = engine.exchange(job, job.opening[0], NOW, state, everyone)
        return sorted(report.contributors.tolist())


def federations(
    algorithm: FederatedAlgorithm,
    problem: BilevelProblem = PROBLEM,
    held: Sequence[LocalExamples] = HELD,
) -> Federations:
    sites = sites_holding(held, problem, algorithm)
    server, private = canonical(algorithm.init(problem, *map(jnp.asarray, START)))
    phases = references(False, algorithm.phases(problem))
    devices = InMemoryDevices(held)
    item = one_device(devices.cohort(np.array([0])))
    job = Job(
        problem=problem,
        algorithm=algorithm,
        devices=devices,
        form=jax.eval_shape(lambda: item),
        key=jax.random.key(0),
        opening=references(True, algorithm.opening(problem)) or phases,
        phases=phases,
        cohort_size=DEVICES,
        loaded_bytes=0,
        limits=Limits(),
        costs={},  # chunk sizes are given
    )
    shards = Mesh(np.array(jax.devices()[:DEVICES]), ("shards",))
    engines: dict[str, Engine] = {
        "simulation": Simulation(chunk_size=DEVICES),
        "debug": DebugSimulation(),
        "sharded": Sharded(shards, chunk_size=1),
        "federation": federation(sites),
    }
    return Federations(job, server, private, engines, enrolled(sites))


def upload_norms(run: Federations) -> list[float]:
    """Return the norms of all devices' first uploads, from the program of a site."""
    job, norms = run.job, []
    phase = job.opening[0].of(job.algorithm, job.problem)
    for device in range(DEVICES):
        upload, _, _ = compute_on_device(
            job.algorithm,
            phase.broadcast(run.server),
            run.private,
            one_device(InMemoryDevices([HELD[device]]).cohort(np.array([0]))),
            device_key(job.key, NOW, device),
            problem=job.problem,
            reference=job.opening[0],
        )
        squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(upload)]
        norms.append(float(np.sqrt(sum(squares))))
    return norms


@in_tiers(quick=(), check=KINDS[1:])
def test_every_engine_counts_the_same_devices(name):
    run = federations(ALGORITHMS[name]())
    norms = upload_norms(run)
    limit = sum(norms) / DEVICES
    # Norms differ clearly, since engines round differently.
    assert max(norms) > 1.0001 * min(norms)
    actual = {engine: run.counted(engine, limit) for engine in run.engines}
    smaller = int(np.argmin(norms))
    assert actual == {engine: [smaller] for engine in run.engines}


@pytest.mark.nightly
def test_the_limit_does_not_apply_to_info():
    # The devices report 9 local steps, and the norms of their uploads are below 8.
    run = federations(SimFBO(0.01, local_steps=9), GENTLE)
    for engine in run.engines:
        assert run.counted(engine, 8.0) == [0, 1], engine


@jax.tree_util.register_static
@dataclass(frozen=True)
class Reporting:
    """FedBiO whose devices report the logarithm of their target, so one gives NaN."""

    inner: FedBiO

    def init(self, problem: BilevelProblem, x: Any, y: Any) -> Any:
        return self.inner.init(problem, x, y)

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        (phase,) = self.inner.phases(problem)

        def start(downlink: Any, private: Any, data: Any, key: Any) -> Any:
            (batch,) = data.upper.draw(key, 1, draws=1)
            carry = phase.start(downlink, private, data, key)
            return carry, jnp.log(batch.target[0, 0])

        def finish(carry: Any, downlink: Any, key: Any) -> Any:
            upload, saved, _ = phase.finish(carry[0], downlink, key)
            return upload, saved, {"reported": carry[1]}

        return (
            phase._replace(
                start=start,
                step=lambda carry, data, key: (
                    phase.step(carry[0], data, key),
                    carry[1],
                ),
                finish=finish,
            ),
        )


@pytest.mark.nightly
def test_info_that_is_not_finite_excludes_its_device_on_every_engine():
    held = [
        item._replace(upper=item.upper._replace(target=np.full((2, 4), sign)))
        for item, sign in zip(HELD, [2.0, -1.0], strict=True)
    ]
    algorithm = Reporting(FedBiO(0.1))
    runs = federations(algorithm, PROBLEM, held)
    # This engine stops at any number that is not finite.
    with pytest.raises(DeviceError, match="Device 1, round 0, phase 0, start"):
        runs.counted("debug", None)
    for engine in ("simulation", "sharded", "federation"):
        assert runs.counted(engine, None) == [0], engine
    (result,) = run(PROBLEM, algorithm, InMemoryDevices(held), *START, rounds=1)
    reported = result.reports[0].info["reported"]
    np.testing.assert_allclose(reported, np.log(2.0), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_errors_of_both_kinds_of_engines_name_the_limit():
    algorithm = SimFBO(0.01, local_steps=9)
    runs = federations(algorithm, GENTLE)
    initial = (GENTLE, algorithm)
    rest: dict[str, Any] = {"rounds": 1, "limits": Limits(norm=0.001)}
    engine = runs.engines["federation"]
    with pytest.raises(NoQuorumError) as refused:
        list(run(*initial, runs.enrolled, *START, engine=engine, **rest))
    reason = "upload is not finite or exceeds the norm limit of 0.001."
    sites = " ".join(f'Site "site-{number}": {reason}' for number in range(DEVICES))
    assert str(refused.value) == (
        f"Round 0: 0 of 1 required uploads were accepted. {sites} "
        "Raise the norm limit or lower the learning rate."
    )
    with pytest.raises(NoUploadsError, match=r"limit of 0\.001\. Raise the norm limit"):
        list(run(*initial, InMemoryDevices(HELD), *START, **rest))
