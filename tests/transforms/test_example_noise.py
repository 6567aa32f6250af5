"""Clipping and noise by example: sums, noise, calls, and what algorithms can read."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, kstest, poisson

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    Checkpoints,
    Clip,
    DebugSimulation,
    ExampleNoise,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
    Phase,
    Quantise,
    Run,
    Simulation,
    TrimmedMean,
    Upload,
    run,
    sweep,
    with_transforms,
)
from fedbilevel.algorithms import map_phases
from fedbilevel.data.examples import StoredData, StoredExamples, one_device
from fedbilevel.engines.device_work import loop_steps, run_device
from fedbilevel.engines.example_releases import batch_uses
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.spending import populations_of
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Federation,
    RefusedError,
    Site,
    SiteRules,
)
from fedbilevel.federation.in_process import InProcess
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.privacy import GaussianRelease, PoissonDraws, spent
from fedbilevel.privacy.poisson import poisson_table
from fedbilevel.transforms.private_batches import (
    Level,
    Place,
    PrivateData,
    poisson_number,
)
from fedbilevel.transforms.private_oracles import private_problem
from fedbilevel.transforms.private_phases import ALGORITHM, private_phases
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.transforms.test_transforms import at_sites, trajectory

PROBLEM = quadratic.problem()
KEY = jax.random.key(5)
QUIET = 1e-12
X, Y = federation.START
VECTOR = np.linspace(-2.0, 1.0, quadratic.Y_SIZE)


def rows(count: int) -> StoredData:
    """Return the data of one device."""
    generator = np.random.default_rng(3)
    held = quadratic.examples(generator, count, 0.3)
    return one_device(InMemoryDevices([held]).cohort(np.array([0])))


def oracle(noise: ExampleNoise, name: str, data: Any = None) -> tuple[Any, Any, Any]:
    """Return a private oracle, its data and the arguments after the batch."""
    private = PrivateData(rows(20) if data is None else data, Place.STEP, KEY)
    problem = private_problem(PROBLEM, noise, private)
    vectors = (jnp.asarray(VECTOR),) if name.endswith("product") else ()
    return getattr(problem, name), private, vectors


LEVELS = {
    "upper_gradients": "upper",
    "lower_gradient": "lower",
    "lower_gradient_x": "lower",
    "hessian_product": "lower",
    "cross_product": "lower",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_an_oracle_is_the_sum_of_clipped_examples(name):
    """A transcription in NumPy of clipped oracles, one example after another."""
    noise = ExampleNoise(clip=0.8, multiplier=QUIET)
    function, private, vectors = oracle(noise, name)
    level = getattr(private, LEVELS[name])
    (batch,) = level.draw(KEY, 6, draws=1)
    answer = function(X, Y, batch, *vectors)
    sample, _ = level.sample(batch)
    total, lengths = 0.0, []
    for row in range(int(sample.number)):
        single = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], sample.rows)
        result = getattr(PROBLEM, name)(X, Y, single, *vectors)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result)])
        lengths.append(np.linalg.norm(flat))
        total = total + flat * min(1.0, 0.8 / lengths[-1])
    assert int(sample.number) > 1
    assert max(lengths) > 0.8  # The clip matters.
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(answer)])
    np.testing.assert_allclose(flat, total / 6, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_a_custom_oracle_is_used():
    def product(x, y, batch, vector):
        return 7.0 * vector

    problem = BilevelProblem(
        PROBLEM.upper_loss, PROBLEM.lower_loss, hessian_product=product
    )
    private = PrivateData(rows(20), Place.STEP, KEY)
    own = private_problem(problem, ExampleNoise(1e7, 1e-18), private)
    (batch,) = private.lower.draw(KEY, 6, draws=1)
    number = int(private.lower.sample(batch)[0].number)
    answer = own.hessian_product(X, Y, batch, VECTOR)
    # The noise has a standard deviation of 1e-11 / 6.
    expected = 7.0 * VECTOR * number / 6
    np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 16, 128])
def test_batches_have_a_poisson_number_of_examples(size):
    keys = jax.random.split(KEY, 20_000)
    table = poisson_table(size)
    number = jax.jit(jax.vmap(partial(poisson_number, table)))(keys)
    counts = np.bincount(np.asarray(number), minlength=3 * size)
    expected = len(keys) * poisson.pmf(np.arange(len(counts)), size)
    common = expected > 20
    statistic = np.sum((counts - expected)[common] ** 2 / expected[common])
    assert statistic < chi2.ppf(0.9999, common.sum())


def noise_of(name: str, size: int, multiplier: float, seeds: int) -> Any:
    """Return the noise of an oracle on losses that do not depend on x and y."""

    def loss(x, y, batch):
        return 0.0 * jnp.mean(batch) * (jnp.sum(x**2) + jnp.sum(y**2) + x[0] * y[0])

    problem = BilevelProblem(loss, loss)
    held = StoredExamples(jnp.ones(4), jnp.array(0), jnp.array(4))

    def once(key):
        private = PrivateData(StoredData(held, held), Place.STEP, KEY)
        own = private_problem(problem, ExampleNoise(0.7, multiplier), private)
        (batch,) = getattr(private, LEVELS[name]).draw(key, size, draws=1)
        start = jnp.ones(3), jnp.ones(3)
        vectors = (jnp.ones(3),) if name.endswith("product") else ()
        calls = [getattr(own, name)(*start, batch, *vectors) for _ in range(2)]
        return [jnp.concatenate(jax.tree.leaves([call])) for call in calls]

    return jax.jit(jax.vmap(once))(jax.random.split(KEY, seeds))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_the_noise_has_its_variance_and_calls_are_independent(name):
    first, second = (np.ravel(call) for call in noise_of(name, 5, 2.0, 2000))
    deviation = 2.0 * 0.7 / 5
    for numbers in (first, second):
        low, high = chi2.ppf([0.005, 0.995], len(numbers)) * deviation**2
        assert low <= np.sum(numbers**2) <= high
    assert kstest(first / deviation, "norm").pvalue > 1e-3
    # Equal noise would cancel in the difference; so would a common part.
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(first))


@pytest.mark.slow
def test_an_example_that_is_not_finite_counts_as_zero():
    def loss(x, y, batch):
        return jnp.mean(batch) * (x + y)

    problem = BilevelProblem(loss, loss)
    values = jnp.array([jnp.nan, jnp.inf, 1.0, 1.0])
    held = StoredExamples(values, jnp.array(0), jnp.array(4))
    private = PrivateData(StoredData(held, held), Place.STEP, KEY)
    own = private_problem(problem, ExampleNoise(1.0, QUIET), private)
    (batch,) = private.lower.draw(KEY, 30, draws=1)
    sample, _ = private.lower.sample(batch)
    finite = int(np.isfinite(sample.rows[: int(sample.number)]).sum())
    assert 0 < finite < int(sample.number)
    answer = own.lower_gradient(jnp.array(0.0), jnp.array(0.0), batch)
    assert float(answer) == pytest.approx(finite / 30, rel=1e-9)


@jax.tree_util.register_static
@dataclass(frozen=True)
class OnSameBatches:
    """An algorithm on the batches of `ExampleNoise`, without clips and noise.

    The losses weigh the rows of a batch: rows beyond its number have weight 0.
    """

    inner: Any

    def init(self, problem, x, y):
        return self.inner.init(problem, x, y)

    def opening(self, problem):
        return self._replace(self.inner.opening(weighted(problem)))

    def phases(self, problem):
        return self._replace(self.inner.phases(weighted(problem)))

    def _replace(self, phases):
        def replaced(phase):
            def start(downlink, private, data, key):
                own = Unprotected(PrivateData(data, Place.START, key))
                key = jax.random.fold_in(key, ALGORITHM)
                return phase.start(downlink, private, own, key)

            def step(carry, data, key):
                own = Unprotected(PrivateData(data, Place.STEP, key))
                return phase.step(carry, own, jax.random.fold_in(key, ALGORITHM))

            return phase._replace(start=start, step=step)

        return map_phases(replaced, phases)


class Unprotected:
    """Data whose batches are the samples of private batches."""

    def __init__(self, private: Any) -> None:
        self.upper, self.lower = map(Readable, (private.upper, private.lower))


class Readable:
    def __init__(self, private: Any) -> None:
        self._private, self.size = private, private.size

    def draw(self, key, batch_size, draws):
        batches = []
        for batch in self._private.draw(key, batch_size, draws):
            sample, _ = self._private.sample(batch)
            used = jnp.arange(len(jax.tree.leaves(sample.rows)[0])) < sample.number
            batches.append((sample.rows, used.astype(float) / batch_size))
        return tuple(batches)


def weighted(problem: BilevelProblem) -> BilevelProblem:
    def loss(single, x, y, batch):
        rows, weights = batch
        values = jax.vmap(
            lambda row: single(x, y, jax.tree.map(lambda leaf: leaf[None], row))
        )(rows)
        return jnp.sum(weights * values)

    return BilevelProblem(
        partial(loss, problem.upper_loss), partial(loss, problem.lower_loss)
    )


REFUSED = {
    "AutoFedBiO": "does not protect AutoFedBiO",
    "LocalBSGM, optax schedule, conjugate gradient": "inside custom_linear_solve",
}


@in_tiers(quick=(), check=())
def test_without_clip_and_noise_algorithms_are_unchanged(name):
    if name in REFUSED:
        return
    noise = ExampleNoise(clip=1e6, multiplier=1e-16, from_seed=True)
    inner = ALGORITHMS[name]()
    expected = trajectory(OnSameBatches(inner), Simulation())
    private = trajectory(with_transforms(inner, noise), Simulation())
    np.testing.assert_allclose(private, expected, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REFUSED))
def test_algorithms_that_cannot_be_protected_are_refused(name):
    with pytest.raises(ValueError, match=REFUSED[name]):
        uses_of(with_transforms(ALGORITHMS[name](), ExampleNoise(1.0, 1.0)))


@pytest.mark.nightly
def test_shards_give_the_same_trajectory():
    algorithm = with_transforms(ALGORITHMS["FedBiO"](), ExampleNoise(0.5, 0.3))
    expected = trajectory(algorithm, Simulation())
    assert_same(expected, trajectory(algorithm, shards(2)))


@in_tiers(quick=(), check=())
def test_every_engine_gives_one_trajectory(name):
    if name in REFUSED:
        return
    noise = ExampleNoise(0.5, 0.3, from_seed=True)
    algorithm = with_transforms(ALGORITHMS[name](), noise)
    expected = trajectory(algorithm, Simulation())
    for engine in (Simulation(chunk_size=3), shards(2), DebugSimulation()):
        assert_same(expected, trajectory(algorithm, engine))
    assert_same(expected, at_sites(algorithm))


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_a_sweep_gives_the_trajectory_of_a_run(name):
    inner = ALGORITHMS[name]()
    algorithms = [
        with_transforms(inner, ExampleNoise(0.5, multiplier, from_seed=True))
        for multiplier in (0.1, 0.9)
    ]
    whole = Run(
        PROBLEM,
        inner,
        federation.in_memory(),
        *federation.START,
        rounds=3,
        weights=federation.WEIGHTS,
    )
    result = sweep(
        whole,
        algorithms,
        seeds=[0],
        measure=lambda server: jnp.concatenate([server.x, server.y]),
    )
    for row, algorithm in enumerate(algorithms):
        expected = trajectory(algorithm, Simulation())
        np.testing.assert_allclose(
            result.measurements[row, 0], expected, rtol=1e-9, atol=1e-9
        )


# The number of batches and of calls in each, for one device: (size, calls): batches.
CALLS: dict[str, list[tuple[dict[Any, int], dict[Any, int]]]] = {
    # Each of 2 steps: ξ for ∇f; ζ, ζ_0, ζ_1 and ζ_2. The opening has first estimates.
    "LocalBSGM": [
        ({(1, 1): 3}, {(1, 1): 12}),
        ({(1, 1): 2}, {(1, 1): 8}),
    ],
    # Each batch of a step is evaluated at two points; first estimates with 4 examples.
    "LocalBSGVRM": [
        ({(4, 1): 1, (1, 2): 2}, {(4, 1): 4, (1, 2): 8}),
        ({(1, 2): 2}, {(1, 2): 8}),
    ],
    "FedBiO": [({(1, 1): 2}, {(1, 1): 6})],
    # ζ_0 at (x, w) and (x, y) for ∇x g, and ζ at the same points for ∇y g.
    "F2SA": [({(1, 1): 2}, {(1, 2): 4})],
    # A step beyond the number of a device has weight 0, and still reads examples.
    "SimFBO": [({(1, 1): 3}, {(1, 1): 9})],
    "FedNest": [
        *[({}, {(1, 1): 1}), ({}, {(1, 2): 2})] * 2,
        ({(1, 1): 1}, {}),
        *[({}, {(1, 1): 1})] * 2,
        ({(1, 1): 1}, {(1, 1): 1}),
        ({(1, 2): 2}, {}),
    ],
    "LFedNest": [*[({}, {(1, 1): 2})] * 2, ({(1, 1): 2}, {(1, 1): 6})],
}


def uses_of(algorithm: Any) -> list[Any]:
    start = canonical(federation.START)
    server, private = canonical(algorithm.init(PROBLEM, *start))
    phases = (*algorithm.opening(PROBLEM), *algorithm.phases(PROBLEM))
    uses = [batch_uses(phase, server, private, rows(5), KEY) for phase in phases]
    return [
        tuple(
            {
                (use.batch_size, use.answers): number
                for use, number in each.items()
                if use.level == level
            }
            for level in Level
        )
        for each in uses
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_counted_as_by_hand(name):
    algorithm = with_transforms(ALGORITHMS[name](), ExampleNoise(1.0, 1.0))
    assert uses_of(algorithm) == CALLS[name]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Custom:
    """An algorithm with one step, whose direction of y is a function."""

    direction: Any

    def init(self, problem, x, y):
        return FedBiO(0.1).init(problem, x, y)

    def opening(self, problem):
        return ()

    def phases(self, problem):
        return (
            Phase(
                name="step",
                steps=1,
                broadcast=lambda server: (server.x, server.y),
                start=lambda downlink, private, data, key: downlink,
                step=lambda carry, data, key: (
                    carry[0],
                    carry[1] - self.direction(problem, carry, data, key),
                ),
                finish=lambda carry, downlink, key: (Upload((carry[1],)), (), {"a": 1}),
                server=lambda server, mean, key: server._replace(y=mean.update[0]),
                reference=lambda downlink: (downlink[1],),
            ),
        )


def draw(data: Any, key: Any) -> Any:
    return data.lower.draw(key, 2, draws=1)[0]


def in_a_scan(problem, point, data, key):
    batch = draw(data, key)
    body = lambda y, _: (problem.lower_gradient(point[0], y, batch), None)  # noqa: E731
    return jax.lax.scan(body, point[1], None, length=2)[0]


def in_a_condition(problem, point, data, key):
    batch = draw(data, key)
    call = lambda: problem.lower_gradient(*point, batch)  # noqa: E731
    return jax.lax.cond(point[0][0] > 0, call, lambda: 0 * point[1])


def in_a_map(problem, point, data, key):
    batch = draw(data, key)
    product = lambda v: problem.hessian_product(*point, batch, v)  # noqa: E731
    return jax.vmap(product)(jnp.stack([point[1], 2 * point[1]])).sum(axis=0)


def traced_once(problem, point, data, key):
    batch = draw(data, key)
    call = jax.jit(lambda y: problem.lower_gradient(point[0], y, batch))
    return call(point[1]) - call(2 * point[1])


def drawn_in_a_function(problem, point, data, key):
    call = jax.jit(lambda y: problem.lower_gradient(point[0], y, draw(data, key)))
    return call(point[1]) - call(2 * point[1])


def differentiated(problem, point, data, key):
    batch = draw(data, key)
    gradient = lambda y: problem.lower_gradient(point[0], y, batch)  # noqa: E731
    return jax.jvp(gradient, (point[1],), (point[1],))[1]


def loss_read(problem, point, data, key):
    return problem.lower_loss(*point, draw(data, key)) * point[1]


def all_read(problem, point, data, key):
    return data.lower.mean(lambda batch: problem.lower_gradient(*point, batch), 2)


def rows_passed(problem, point, data, key):
    return problem.lower_gradient(*point, (jnp.ones(2), jnp.ones(2)))


def other_level(problem, point, data, key):
    return problem.upper_gradients(*point, draw(data, key))[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (in_a_scan, "in a loop or a function that JAX traces once"),
        (in_a_condition, "inside cond"),
        (in_a_map, "under a vmap"),
        (traced_once, "in a loop or a function that JAX traces once"),
        (drawn_in_a_function, "in a loop or a function that JAX traces once"),
        (differentiated, "differentiates lower_gradient"),
        (loss_read, "reads lower_loss, which has no noise"),
        (all_read, "calls Examples.mean"),
        (rows_passed, "got a batch of type tuple"),
        (other_level, "got a batch that is not of the upper examples"),
    ],
)
def test_reads_without_noise_and_unknown_calls_are_refused(direction, message):
    algorithm = with_transforms(Custom(direction), ExampleNoise(1.0, 1.0))
    with pytest.raises(ValueError, match=message) as refusal:
        uses_of(algorithm)
    assert "ExampleNoise" in str(refusal.value)


@pytest.mark.slow
def test_batches_have_neither_examples_nor_secrets():
    private = PrivateData(rows(20), Place.STEP, KEY)
    batches = *private.lower.draw(KEY, 3, draws=2), *private.lower.draw(KEY, 3, 1)
    assert jax.tree.leaves(batches) == []
    # The secrets differ though the key is the same.
    seeds = [private.lower.sample(batch)[0].seed.tolist() for batch in batches]
    assert seeds[0] != seeds[1] != seeds[2] != seeds[0]


@jax.tree_util.register_static
@dataclass(frozen=True)
class ConstantKey:
    """An algorithm that draws with one key in every step and exchange.

    The sum of its directions is an upload, so that equal noise would add up.
    """

    steps: int = 64

    def init(self, problem, x, y):
        return FedBiO(0.1).init(problem, x, y)

    def opening(self, problem):
        return ()

    def phases(self, problem):
        def step(carry, data, key):
            (batch,) = data.lower.draw(jax.random.key(0), 2, draws=1)
            x, y, total = carry
            return x, y, total + problem.lower_gradient(x, y, batch)

        return (
            Phase(
                name="step",
                steps=self.steps,
                broadcast=lambda server: (server.x, server.y),
                start=lambda downlink, private, data, key: (*downlink, 0 * downlink[1]),
                step=step,
                finish=lambda carry, downlink, key: (Upload((carry[2],)), (), {}),
                server=lambda server, mean, key: server._replace(y=mean.update[0]),
                reference=lambda downlink: (0 * downlink[1],),
            ),
        )


@pytest.mark.slow
def test_noise_differs_in_each_step_even_if_an_algorithm_uses_a_constant_key():
    noise, data = ExampleNoise(clip=1e-9, multiplier=1e9), rows(20)
    algorithm = with_transforms(ConstantKey(), noise)
    server, private = canonical(algorithm.init(PROBLEM, *canonical(federation.START)))
    (phase,) = algorithm.phases(PROBLEM)
    downlink = phase.broadcast(server)
    sums = [
        run_device(phase, downlink, private, data, jax.random.key(seed))
        for seed in range(2)
    ]
    first, second = (np.asarray(each.upload.update[0]) for each in sums)
    # The noise of a step has a deviation of 1/2: a sum of equal noise would be eight
    # times as large as one of independent noise.
    assert np.linalg.norm(first) < 3 * 0.5 * np.sqrt(ConstantKey.steps * first.size)
    # The noise of a device follows from the engine's key, which may be secret.
    assert np.all(first != second)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["batch", "arrays of a batch"])
def test_a_batch_of_an_earlier_step_does_not_repeat_its_noise(whole):
    """Two steps on a batch of the first would have equal noise, uncounted."""
    answers: list[Any] = []
    problem: Any = PROBLEM

    def step(carry, data, key):
        (batch,) = data.lower.draw(key, 2, draws=1)
        kept = carry[2] or batch
        if not whole:
            leaves = jax.tree.leaves(kept)
            batch = jax.tree.unflatten(jax.tree.structure(batch), leaves)
        answers.append(problem.lower_gradient(*carry[:2], kept if whole else batch))
        return *carry[:2], kept

    noise = ExampleNoise(clip=1e-9, multiplier=1e9)
    plain = Custom(direction=None)
    (phase,) = plain.phases(PROBLEM)
    phase = phase._replace(
        steps=2, start=lambda downlink, private, data, key: (*downlink, None), step=step
    )

    def phases_of(own):
        nonlocal problem
        problem = own
        return (phase,)

    (private_phase,) = private_phases(phases_of, PROBLEM, noise)
    arguments = private_phase, canonical(federation.START), (), rows(3), KEY
    if whole:
        with pytest.raises(ValueError, match="or from another start or step"):
            run_device(*arguments, repeat=loop_steps)
        return
    run_device(*arguments, repeat=loop_steps)
    # Without the noise, the answers are at most 1e-9 long.
    assert np.min(np.abs(np.subtract(*answers))) > 1e-6


def inputs(noise: ExampleNoise, sizes: tuple[int, ...] = (40, 60)) -> Any:
    def loss(x, y, batch):
        return jnp.mean((y - x * batch) ** 2)

    held = [LocalExamples(np.ones(size), np.ones(2 * size)) for size in sizes]
    algorithm = with_transforms(FedBiO(0.1, local_steps=2, batch_size=4), noise)
    return BilevelProblem(loss, loss), algorithm, InMemoryDevices(held), 3.0, 0.0


@pytest.mark.slow
def test_every_round_reports_the_epsilon_of_the_smallest_device():
    results = list(run(*inputs(ExampleNoise(1.0, 2.0, delta=1e-6)), rounds=2))
    for number, result in enumerate(results):
        rounds = number + 1
        upper = {GaussianRelease(2.0, PoissonDraws(4, 40)): 2 * rounds}
        lower = {GaussianRelease(2.0, PoissonDraws(4, 80)): 6 * rounds}
        both = [spent(releases, 1e-6) for releases in (upper, lower)]
        assert result.epsilon == pytest.approx(max(both), rel=1e-12)
        assert result.reports[0].info == {}


@pytest.mark.nightly
def test_a_run_ends_within_its_budget(tmp_path, caplog):
    three = ExampleNoise(1.0, 2.0)
    *_, last = run(*inputs(three), rounds=3)
    noise = ExampleNoise(1.0, 2.0, epsilon=float(last.epsilon or 0.0) * 1.001)
    checkpoints = Checkpoints(tmp_path / "run", every=1)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        results = list(run(*inputs(noise), rounds=9, checkpoints=checkpoints))
    assert [result.number for result in results] == [0, 1, 2]
    assert "allows 3 of 9 rounds" in caplog.text
    (again,) = Run(*inputs(noise), rounds=20).resume(checkpoints)
    assert again.epsilon == pytest.approx(last.epsilon)


@pytest.mark.slow
def test_unknown_sizes_and_other_noise_are_refused():
    problem, algorithm, devices, *start = inputs(ExampleNoise(1.0, 2.0))
    loaded = OnDemandDevices(2, devices.local, 60, 120)
    with pytest.raises(ValueError, match="number of examples of every device"):
        next(run(problem, algorithm, loaded, *start, rounds=1))
    shared = InMemoryDevices.sharing(devices.local(0), 2)
    with pytest.raises(ValueError, match="upper examples of device 1 have rows"):
        next(run(problem, algorithm, shared, *start, rounds=1))
    with pytest.raises(SettingError, match=r"multiplier is 0\.0"):
        ExampleNoise(1.0, 0.0)
    with pytest.raises(ValueError, match="Select another algorithm, such as FedBiO"):
        with_transforms(AutoFedBiO(rounds=5), ExampleNoise(1.0, 1.0))


@pytest.mark.parametrize("copied", [False, True], ids=["same array", "copies"])
def test_the_same_examples_at_several_devices_are_refused(copied):
    """ε of one device was reported for examples in the uploads of ten."""
    table = np.random.default_rng(0).normal(size=(60, 3))
    parts = [table[:20], table[20:40], table[40:], table[5:15]]
    if copied:
        parts = [part.copy() for part in parts[:3]]
        parts.append(parts[0][::-1])
    one = LocalExamples(parts[0], parts[1])
    for held in (
        [one] * 10,
        [LocalExamples(parts[0], parts[0])],
        [one, LocalExamples(parts[2], parts[3])],
    ):
        if copied:
            held = jax.tree.map(np.copy, held)
        with pytest.raises(ValueError, match=r"the \w+ examples of device 0 and the "):
            populations_of(InMemoryDevices(held))
    apart = [LocalExamples(table[k : k + 15], table[k + 15 : k + 30]) for k in (0, 30)]
    assert populations_of(InMemoryDevices(apart)) == {Level.UPPER: 15, Level.LOWER: 15}


def test_both_losses_may_read_one_constant_array():
    rows, ones = np.arange(40.0), np.ones(20)
    apart = LocalExamples((rows[:20], ones), (rows[20:], ones))
    assert InMemoryDevices([apart]).find_copies() is None
    both = LocalExamples((rows[:20], ones), (rows[:20], np.arange(20.0)))
    assert InMemoryDevices([both]).find_copies() is not None


def test_a_site_refuses_examples_that_both_losses_read():
    problem, algorithm, _, *start = inputs(ExampleNoise(1.0, 2.0))
    both = LocalExamples(np.arange(20.0), np.arange(20.0))
    with pytest.raises(RefusedError, match="upper and the lower examples"):
        Site(0, problem, algorithm, both, *start, rules=REHEARSAL)


def at_a_site(
    noise: ExampleNoise, rules: Any = REHEARSAL, releases: ReleaseLog | None = None
) -> Any:
    problem, algorithm, devices, *start = inputs(noise)
    held = [devices.local(number) for number in range(2)]
    sites = {
        f"site-{number}": Site(number, problem, algorithm, each, *start, rules=rules)
        for number, each in enumerate(held)
    }
    enrolled = EnrolledDevices(
        {name: site.enrolment for name, site in sites.items()}, form=held[0]
    )
    engine = Federation(
        InProcess(sites), enrolled, run="a", timeout=600.0, releases=releases
    )
    return problem, algorithm, enrolled, *start, engine


def test_a_site_checks_the_mean_size_of_its_batches():
    # A batch of mean size 4 is cut at 29 examples, which are drawn at once.
    with pytest.raises(RefusedError, match=r"draws batches of 4, .* at least 8"):
        at_a_site(
            ExampleNoise(1.0, 2.0),
            SiteRules(smallest_batch=8, fewest_examples=1, fewest_per_entry=1),
        )


@pytest.mark.nightly
def test_a_federation_counts_exchanges_and_has_secret_noise(tmp_path):
    noise = ExampleNoise(1.0, 2.0)
    file = tmp_path / "releases.txt"
    rules = SiteRules(smallest_batch=4, fewest_examples=1, fewest_per_entry=1)
    ends = []
    for _ in range(2):
        log = ReleaseLog(file)
        *spec, engine = at_a_site(noise, rules, log)
        *_, last = run(*spec, rounds=2, engine=engine)
        ends.append(float(last.y))
    # Another salt of the sites: other examples and other noise.
    assert ends[0] != ends[1]
    assert ReleaseLog(file).count == 4
    # The second process counts the exchanges of the first as repeated.
    assert last.repeated_means == 2
    lower = {GaussianRelease(2.0, PoissonDraws(4, 80)): 4 * 6}
    upper = {GaussianRelease(2.0, PoissonDraws(4, 40)): 4 * 2}
    expected = max(spent(releases, 1e-5) for releases in (upper, lower))
    assert last.epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "others", [(Clip(0.1),), (Quantise(),), (Clip(0.1), TrimmedMean(0.2))]
)
def test_other_transforms_process_noised_uploads(others):
    problem, algorithm, *rest = inputs(ExampleNoise(1.0, 2.0))
    plain = next(run(problem, algorithm, *rest, rounds=1))
    both = with_transforms(algorithm.algorithm, *algorithm.transforms, *others)
    result = next(run(problem, both, *rest, rounds=1))
    assert result.epsilon == plain.epsilon
    assert np.isfinite(float(result.x))
