"""Levels without examples, weights by level and rows by site, on every engine.

The reference is the same problem with the number and the factors of each device written
into its examples by hand.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    CheckpointError,
    Checkpoints,
    DebugSimulation,
    Engine,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
    Run,
    Sharded,
    Simulation,
    SiteRows,
    SiteWeights,
    TrimmedMean,
    UniformSample,
    Weights,
    run,
    sweep,
    with_transforms,
    with_whole_batches,
)
from fedbilevel.algorithms.optional import Conflict, conflict_of, with_draws_of
from fedbilevel.data.examples import StoredExamples
from fedbilevel.data.weights import level_weights
from fedbilevel.engines.final_points import final_points
from fedbilevel.metrics import find_instabilities, newton_reference
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, at_night, in_tiers

K = 5
UPPER = np.array([0.0, 3.0, 0.0, 1.0, 2.0])
LOWER = np.array([1.0, 2.0, 1.5, 0.0, 0.5])
LOCAL = np.array([1.0, 2.0, 1.5, 0.7, 0.5])
"""Lower weights for algorithms with local hypergradients: all devices have some."""
ENGINES: dict[str, Engine] = {
    "simulation": Simulation(),
    "chunks": Simulation(chunk_size=2),
    "sharded": Sharded(),
    "debug": DebugSimulation(),
}
Y = 0.5 * np.ones(quadratic.Y_SIZE)


def start() -> tuple[Any, np.ndarray]:
    """Return x with a row for each site and a shared part, and y."""
    x = {
        "own": SiteRows(np.linspace(-1, 1, K * 2).reshape(K, 2)),
        "shared": np.array([0.3]),
        "weight": SiteWeights(np.linspace(0.5, -0.5, K)),
    }
    return x, Y


def plain_start() -> tuple[Any, np.ndarray]:
    """Return the numbers of `start` without its types."""
    x, y = start()
    return x | {"own": x["own"].rows, "weight": x["weight"].logits}, y


def joined(x: Any) -> Any:
    return jnp.concatenate([x["own"], x["shared"]])


def upper_loss(x, y, batch):
    return quadratic.upper_loss(joined(x), y, batch)


def lower_loss(x, y, batch):
    return x["weight"] * quadratic.lower_loss(joined(x), y, batch)


def held() -> list[LocalExamples]:
    return quadratic.devices(K, 3, noise=0.4)


def lower_weights(algorithm: Any) -> np.ndarray:
    """Return lower weights that an algorithm can use."""
    return LOCAL if conflict_of(algorithm, Conflict.UPPER_ONLY) else LOWER


def levels(lower: np.ndarray = LOWER) -> InMemoryDevices:
    """Return named devices without the examples of weight 0."""
    return InMemoryDevices(
        {
            f"site {k}": LocalExamples(
                each.upper if UPPER[k] else None, each.lower if lower[k] else None
            )
            for k, each in enumerate(held())
        }
    )


def by_hand(
    lower: np.ndarray = LOWER, participants: int = K
) -> tuple[BilevelProblem, InMemoryDevices, np.ndarray]:
    """Return the same problem with columns in the examples, devices and weights."""
    v, w = UPPER / UPPER.sum(), lower / lower.sum()
    shares = (v + w) / 2 if participants == K else np.full(K, 1 / K)

    def with_columns(k: int, rows: Any, share: float) -> Any:
        count = len(jax.tree.leaves(rows)[0])
        factor = np.full(count, share / shares[k])
        return {"rows": rows, "factor": factor, "site": np.full(count, k)}

    def own(x: Any, batch: Any) -> Any:
        site = batch["site"][0]
        weights = K * jax.nn.softmax(x["weight"])
        own = {"own": x["own"][site], "shared": x["shared"]}
        return own | {"weight": weights[site]}

    def scaled(loss: Any) -> Any:
        def of_site(x, y, batch):
            return batch["factor"][0] * loss(own(x, batch), y, batch["rows"])

        return of_site

    # In the reference, devices without examples have those of the first with some.
    first = [np.flatnonzero(level)[0] for level in (UPPER, lower)]
    examples = held()
    columns = [
        LocalExamples(
            with_columns(
                k, each.upper if v[k] else one_row(examples[first[0]].upper), v[k]
            ),
            with_columns(
                k, each.lower if w[k] else one_row(examples[first[1]].lower), w[k]
            ),
        )
        for k, each in enumerate(examples)
    ]
    problem = BilevelProblem(scaled(upper_loss), scaled(lower_loss))
    return problem, InMemoryDevices(columns), shares


def one_row(rows: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[:1], rows)


def numbers(rounds: Any) -> list[np.ndarray]:
    return [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(r.server)])
        for r in rounds
    ]


@pytest.mark.parametrize(
    "participation", [UniformSample(3), *at_night(UniformSample(5))]
)
@in_tiers(quick=(), check=KINDS[1:2])
def test_levels_and_rows_are_those_written_by_hand(name, participation):
    algorithm = ALGORITHMS[name]()
    lower = lower_weights(algorithm)
    problem, devices, shares = by_hand(lower, participation.devices)
    settings = {"rounds": 3, "participation": participation}
    expected = numbers(
        run(problem, algorithm, devices, *plain_start(), weights=shares, **settings)
    )
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3
    for engine in ENGINES.values():
        ours = numbers(
            run(
                BilevelProblem(upper_loss, lower_loss),
                algorithm,
                levels(lower),
                *start(),
                weights=Weights(UPPER, lower),
                engine=engine,
                **settings,
            )
        )
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def test_whole_batches_are_the_full_gradients():
    """One round of FedBiO is the step of the closed form, whatever the sizes."""
    generator = np.random.default_rng(3)
    held = [quadratic.examples(generator, count, 0.5) for count in (2, 40, 33)]
    algorithm = with_whole_batches(FedBiO(0.1, 0.3, 0.5, 0.4, batch_size=1))
    x, y = np.ones(quadratic.X_SIZE), Y
    for rounds in (1, 2):
        *_, last = run(
            quadratic.problem(), algorithm, InMemoryDevices(held), x, y, rounds=rounds
        )
    mean = quadratic.Mean.of(held)
    z = np.zeros_like(y)
    for _ in range(2):
        step_x = mean.shift + quadratic.RIDGE * x + mean.coupling.T @ z
        step_y = mean.matrix @ y - mean.coupling @ x - mean.offset
        step_z = mean.matrix @ z - (y - mean.target)
        x, y, z = x - 0.03 * step_x, y - 0.05 * step_y, z - 0.04 * step_z
    np.testing.assert_allclose(last.x, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(last.y, y, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_each_mean_is_over_the_devices_with_examples():
    """Runs converge to the closed form of the two means, with one trusted device."""
    held = quadratic.devices(4, 3, noise=0.5)
    devices = InMemoryDevices(
        [
            held[0]._replace(lower=None),
            *(each._replace(upper=None) for each in held[1:]),
        ]
    )
    upper, lower = quadratic.Mean.of(held[:1]), quadratic.Mean.of(held[1:])
    both = lower._replace(target=upper.target, shift=upper.shift)
    for algorithm, tolerance in (
        (with_whole_batches(FedBiO(0.2)), 1e-9),
        (with_whole_batches(AutoFedBiO(rounds=1500, local_steps=1)), 1e-3),
    ):
        *_, last = run(
            quadratic.problem(),
            algorithm,
            devices,
            np.zeros(quadratic.X_SIZE),
            Y,
            rounds=1500,
            every=1500,
        )
        np.testing.assert_allclose(last.x, both.solution(), rtol=0, atol=tolerance)
    reference = newton_reference(quadratic.problem(), devices)
    x = np.asarray(last.x)
    for ours, expected in (
        (reference.lower_solution(x, Y), both.lower_solution(x)),
        (reference.hypergradient(x, Y), both.hypergradient(x)),
    ):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-9)


def test_the_derivatives_of_site_weights_are_those_of_softmax():
    logits = jnp.array([0.3, -1.0, 2.0])
    for site in range(3):
        own = jax.grad(lambda at, k=site: 3 * jax.nn.softmax(at)[k])(logits)
        ours = SiteWeights(logits).pull_back(np.array(site), jnp.array(1.0))
        np.testing.assert_allclose(ours.logits, own, atol=1e-15)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"Oslo": 1.0}, "weights has the name 'Oslo', but the devices are site 0, "),
        (Weights(upper=[1, 0, 0, 0, 0]), "All devices with upper examples have weight"),
        (Weights(lower=[1, 1]), "shape (2,), but there are 5 devices"),
    ],
)
def test_weights_that_fit_no_device_are_refused(weights, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        level_weights(levels(), weights)


def test_rows_for_another_number_of_sites_are_refused():
    x = {"own": SiteRows(np.zeros((3, 2))), "shared": np.zeros(1), "weight": 1.0}
    problem = BilevelProblem(upper_loss, lower_loss)
    with pytest.raises(ValueError, match=r"x\['own'\] has shape .*5 devices"):
        next(run(problem, FedBiO(0.1), levels(), x, Y, rounds=1))


@pytest.mark.slow
def test_sweeps_and_final_points_are_those_of_run():
    problem, devices = BilevelProblem(upper_loss, lower_loss), levels()
    one = Run(
        problem,
        FedBiO(0.1),
        devices,
        *start(),
        rounds=3,
        weights=Weights(UPPER, LOWER),
    )
    *_, last = one
    expected = np.ravel(last.x["own"].rows)
    swept = sweep(
        one, [FedBiO(0.1)], seeds=[0], measure=lambda server: server.x["own"].rows
    )
    ours = np.ravel(swept.measurements[0, 0, -1])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    points = final_points(one)([(FedBiO(0.1), 0)], 3)
    np.testing.assert_allclose(np.ravel(points.x["own"].rows), expected, atol=1e-12)


def test_another_division_of_the_same_weights_is_another_run(tmp_path):
    """v and w may have the same mean as other v and w."""
    held = quadratic.devices(2, 3, 0.4)
    devices = OnDemandDevices(2, held.__getitem__, 3, 3)
    first = (quadratic.problem(), FedBiO(0.1), devices, np.zeros(3), Y)
    checkpoints = Checkpoints(tmp_path, every=1)
    list(Run(*first, rounds=1, weights=Weights([1, 3], [3, 1])).start(checkpoints))
    other = Run(*first, rounds=2, weights=Weights([3, 1], [1, 3]))
    with pytest.raises(CheckpointError, match="factors"):
        list(other.resume(checkpoints))


@pytest.mark.parametrize("name", ["LocalBSGM", "LFedNest"])
def test_a_device_without_a_local_hypergradient_is_refused(name):
    with pytest.raises(ValueError, match="Device 'site 3' has upper examples, but no"):
        next(
            run(
                quadratic.problem(),
                ALGORITHMS[name](),
                levels(),
                np.zeros(3),
                Y,
                rounds=1,
            )
        )


def test_levels_of_devices_on_demand_are_refused():
    held = quadratic.devices(2, 3, 0.4)
    devices = OnDemandDevices(2, lambda device: held[device]._replace(upper=None), 3, 3)
    with pytest.raises(ValueError, match="Device 0 has no upper examples, but devices"):
        next(run(quadratic.problem(), FedBiO(0.1), devices, np.zeros(3), Y, rounds=1))


@pytest.mark.slow
def test_wrappers_of_draws_reach_trials_and_searches():
    held = [quadratic.devices(1, count, 0.5)[0] for count in (1, 400)]
    one = Run(
        quadratic.problem(),
        with_whole_batches(FedBiO(0.05)),
        InMemoryDevices(held),
        np.zeros(3),
        Y,
        rounds=50,
    )
    assert find_instabilities(one, one.x, one.y, seconds=600.0) == ()
    assert with_draws_of(one.algorithm, FedBiO(0.1)) == with_whole_batches(FedBiO(0.1))


def test_pooled_examples_have_no_placeholders():
    devices = levels()
    assert len(devices.pooled.upper.target) == devices.upper_sizes.sum()
    assert len(devices.pooled.lower.matrix) == devices.lower_sizes.sum()


def test_sampled_means_of_levels_are_unbiased():
    """Device 0 has both levels, 1 the upper, 2 the lower; each is drawn alone."""
    rows = lambda value: np.full((1, 1), value)  # noqa: E731
    devices = InMemoryDevices(
        [
            LocalExamples(rows(0.0), rows(0.0)),
            LocalExamples(rows(3.0), None),
            LocalExamples(None, rows(3.0)),
        ]
    )

    def upper(x, y, batch):
        return 0.5 * jnp.mean((x[None] - batch) ** 2)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y[None] - batch) ** 2)

    rounds = run(
        BilevelProblem(upper, lower),
        FedBiO(0.02),
        devices,
        np.zeros(1),
        np.zeros(1),
        rounds=4000,
        participation=UniformSample(1),
        every=5,
    )
    points = [(float(each.x[0]), float(each.y[0])) for each in rounds]
    # A mean over rounds: by the shares of the participants it would be (2, 2).
    np.testing.assert_allclose(np.mean(points[200:], axis=0), [1.5, 1.5], atol=0.1)


def test_whole_batches_of_half_floats_are_summed_in_single_precision():
    count = 100_000
    examples = StoredExamples(
        jnp.ones(count, jnp.bfloat16), jnp.asarray(0), jnp.asarray(count)
    )
    mean = examples.mean(lambda batch: jnp.mean(batch), batch_size=32)
    assert (mean.dtype, float(mean)) == (jnp.bfloat16, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LocalBSGM", "FedNest", "SimFBO", "F2SA"])
def test_whole_batches_work_with_other_algorithms(name):
    *_, last = run(
        quadratic.problem(),
        with_whole_batches(ALGORITHMS[name]()),
        InMemoryDevices(held()),
        np.zeros(3),
        Y,
        rounds=2,
    )
    assert np.isfinite(last.x).all()
    assert np.abs(last.x).max() > 0


def test_robust_means_refuse_devices_that_differ_by_design():
    algorithm = with_transforms(FedBiO(0.1), TrimmedMean(0.25))
    inputs = quadratic.problem(), algorithm
    with pytest.raises(ValueError, match="A robust mean discards updates that differ"):
        next(
            run(
                *inputs,
                InMemoryDevices(held()),
                np.zeros(3),
                Y,
                rounds=1,
                weights=Weights(upper=[1, 2, 3, 4, 5]),
            )
        )
    with pytest.raises(ValueError, match="excludes devices that contribute to one"):
        next(run(*inputs, levels(), np.zeros(3), Y, rounds=1))


@pytest.mark.slow
def test_rare_large_curvatures_do_not_meet_rates_for_small_ones():
    """One of 30 devices, in 3 of which a round, has 100 times the curvature."""
    ones = np.ones((1, 1))
    devices = InMemoryDevices(
        [LocalExamples(ones, ones * (100.0 if k == 7 else 1.0)) for k in range(30)]
    )

    def upper(x, y, batch):
        return 0.5 * jnp.mean((y[None] - batch) ** 2)

    def lower(x, y, batch):
        return 0.5 * jnp.mean(batch) * jnp.sum((y - x) ** 2)

    *_, last = run(
        BilevelProblem(upper, lower),
        AutoFedBiO(rounds=1500, local_steps=1),
        devices,
        3 * np.ones(1),
        np.zeros(1),
        rounds=1500,
        participation=UniformSample(3),
        every=1500,
    )
    np.testing.assert_allclose(last.x, 1.0, atol=0.01)


def test_weights_may_be_a_series():
    full = LocalExamples(np.ones(2), np.ones(2))
    devices = InMemoryDevices({"Oslo": full, "Rome": full})
    series: Any = pd.Series({"Rome": 3.0, "Oslo": 1.0})
    assert level_weights(devices, series).upper.tolist() == [0.25, 0.75]
    with pytest.raises(ValueError, match="Device 0 has no examples"):
        InMemoryDevices([LocalExamples(None, None)])
