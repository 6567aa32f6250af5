import subprocess
import sys
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    ConjugateGradient,
    DebugSimulation,
    FedBiO,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    OnDemandDevices,
    Phase,
    Run,
    Simulation,
    UniformSample,
    Upload,
    WarmStart,
    predict_costs,
    run,
)
from fedbilevel.algorithms import Aggregation, momentum
from fedbilevel.data.examples import StoredExamples
from fedbilevel.engines import debug
from fedbilevel.engines.device_work import run_device
from fedbilevel.mathematics import tree
from tests import quadratic
from tests.algorithms.table import TwoExchanges, at_night

START = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)
SERIES = NeumannSeries(terms=3, scale=0.1)
WITH_WARM_START = LocalBSGVRM(
    0.1,
    SERIES,
    local_steps=2,
    initial_batch_size=5,
    warm_start=WarmStart(learning_rate=0.1, exchanges=2, local_steps=3),
)


def start_run(algorithm, devices=None, **settings):
    devices = devices or InMemoryDevices(quadratic.devices(4, 3, 0.1))
    return run(quadratic.problem(), algorithm, devices, *START, **settings)


def test_a_run_is_a_value_that_can_be_run_again():
    devices = InMemoryDevices(quadratic.devices(2, 3, 0.1))
    whole = Run(quadratic.problem(), FedBiO(0.1), devices, *START, rounds=3)
    first, second = [result.x for result in whole], [result.x for result in whole]
    np.testing.assert_array_equal(first, second)
    (last,) = whole.start(every=3)
    np.testing.assert_allclose(last.x, first[-1], rtol=0, atol=1e-12)


def predicted(algorithm, rounds):
    """Return the costs of a run, after `test_what_a_run_will_cost_is_known_before`."""
    devices = InMemoryDevices(quadratic.devices(4, 3, 0.1))
    inputs = quadratic.problem(), algorithm, devices, *START
    return predict_costs(Run(*inputs, rounds=rounds))


@pytest.mark.slow
def test_samples_are_those_that_the_algorithm_states():
    # Per step and device: 1 upper batch; ζ, ζ_0 and ζ_1 … ζ_3 of the lower set.
    algorithm = LocalBSGVRM(
        0.1, SERIES, local_steps=2, batch_size=3, initial_batch_size=7
    )
    first, second = (predicted(algorithm, rounds) for rounds in (1, 2))
    assert first.upper_samples == 4 * (7 + 2 * 3)
    assert first.lower_samples == 4 * 5 * (7 + 2 * 3)
    assert second.samples == first.samples + 4 * 6 * 2 * 3
    assert second.exchanges == 2


@pytest.mark.slow
def test_conjugate_gradient_draws_one_curvature_batch():
    algorithm = LocalBSGM(0.1, ConjugateGradient(iterations=4))
    first, second = (predicted(algorithm, rounds) for rounds in (1, 2))
    assert second.lower_samples - first.lower_samples == 4 * 3


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", [TwoExchanges(0.1), *at_night(WITH_WARM_START)])
def test_bytes_and_samples_equal_those_of_the_actual_arrays(algorithm, monkeypatch):
    """Observe the uncompiled engine, in which messages and samples are real arrays."""
    seen = {"down": 0, "up": 0, "samples": 0}
    draw = StoredExamples.draw

    def watched_work(phase, downlink, *rest, **how):
        result = run_device(phase, downlink, *rest, **how)
        seen["up"] += tree.number_of_bytes(result.upload)
        seen["down"] += tree.number_of_bytes(downlink)
        return result

    def watched_draw(self, key, batch_size, draws):
        batches = draw(self, key, batch_size, draws)
        if not any(
            isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(batches)
        ):
            seen["samples"] += sum(len(jax.tree.leaves(batch)[0]) for batch in batches)
        return batches

    monkeypatch.setattr(debug, "run_device", watched_work)
    monkeypatch.setattr(StoredExamples, "draw", watched_draw)
    *_, last = start_run(algorithm, rounds=2, engine=DebugSimulation())
    assert last.costs.bytes_down == seen["down"]
    assert last.costs.bytes_up == seen["up"]
    assert last.costs.samples == seen["samples"]


@pytest.mark.slow
def test_devices_keep_their_private_state_between_the_rounds_they_take_part_in():
    times = np.zeros(9)
    for result in start_run(
        TwoExchanges(0.1),
        InMemoryDevices(quadratic.devices(9, 3, 0.1)),
        rounds=6,
        participation=UniformSample(4),
        engine=Simulation(chunk_size=3),
    ):
        times[result.participants] += 1
        # The report is the mean of the participants' counts.
        expected = times[result.participants].mean()
        np.testing.assert_allclose(result.reports[1].info["rounds"], expected)
    assert times.min() < times.max()


@pytest.mark.nightly
def test_data_loaded_on_demand_gives_the_same_numbers():
    generator = np.random.default_rng(3)
    held = [quadratic.examples(generator, size, 0.3) for size in (2, 5, 3, 1, 4)]
    loaded: list[int] = []

    def load(device):
        loaded.append(device)
        return held[device]

    on_demand = OnDemandDevices(5, load, upper_capacity=6, lower_capacity=5)
    algorithm = TwoExchanges(0.1)
    settings: dict[str, Any] = {"rounds": 3, "participation": UniformSample(3)}
    stored = list(start_run(algorithm, InMemoryDevices(held), **settings))
    rounds = start_run(algorithm, on_demand, **settings)
    loaded.clear()
    for item, other in zip(stored, rounds, strict=True):
        np.testing.assert_allclose(item.x, other.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(item.y, other.y, rtol=0, atol=1e-12)
        # Only participants are loaded.
        assert set(loaded) == set(other.participants.tolist())
        loaded.clear()


def test_uniform_sample_is_uniform_and_differs_between_rounds_and_seeds():
    sample = UniformSample(3)
    chosen = [sample(0, number, 10) for number in range(2000)]
    counts = np.bincount(np.concatenate(chosen), minlength=10)
    # 600 expected a device; binomial deviation 20.5, so 5 deviations are safe.
    assert np.abs(counts - 600).max() < 103
    assert any((a != b).any() for a, b in pairwise(chosen))
    assert any((sample(1, n, 10) != chosen[n]).any() for n in range(10))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"weights": [1.0]}, "one weight for each device"),
        ({"weights": [1.0, np.nan, 1.0, 1.0]}, "weights\\[1\\] is nan"),
        ({"weights": np.zeros(4)}, "All devices with upper examples have weight 0"),
        ({"participation": UniformSample(5)}, "there are 4 devices"),
        ({"participation": lambda *_: np.array([1, 1])}, "a device twice"),
        ({"participation": lambda *_: [-1, 2]}, "returned device -1"),
        ({"participation": lambda *_: [4]}, "numbers from 0 to 3"),
    ],
)
def test_mistakes_are_refused_with_cause_and_cure(settings, message):
    algorithm = LocalBSGM(0.1, SERIES)
    with pytest.raises(ValueError, match=message):
        next(start_run(algorithm, **{"rounds": 1, **settings}))


def test_a_mistake_in_the_arguments_is_refused_before_the_first_round_is_asked_for():
    with pytest.raises(ValueError, match="rounds is 0"):
        start_run(LocalBSGM(0.1, SERIES), rounds=0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.zeros(4, int), "y has dtype int64"),
        ({"a": np.zeros(3, int)}, np.zeros(4), r"x\['a'\] has dtype int64"),
        ({}, np.zeros(4), "x has no arrays"),
    ],
)
def test_variables_that_cannot_be_differentiated_are_refused(x, y, message):
    devices = InMemoryDevices(quadratic.devices(1, 1, 0.0))
    with pytest.raises(ValueError, match=message):
        run(quadratic.problem(), LocalBSGM(0.1, SERIES), devices, x, y, rounds=1)


def test_a_loss_that_is_no_mean_is_refused():
    problem = BilevelProblem(
        quadratic.upper_loss, lambda x, y, batch: jnp.sum(batch.offset, axis=1)
    )
    devices = InMemoryDevices(quadratic.devices(1, 1, 0.0))
    with pytest.raises(ValueError, match=r"lower_loss returned .* shape \(7,\)"):
        run(problem, LocalBSGM(0.1, SERIES), devices, *START, rounds=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -0.1}, "learning_rate is -0.1, .* above 0"),
        ({"local_steps": 0}, "local_steps is 0, .* at least 1"),
        ({"batch_size": 0}, "batch_size is 0, .* at least 1"),
        ({"learning_rate": 0.5, "lower_mixing": 5.0}, "lower_mixing"),
        ({"learning_rate": np.float32(-3)}, "learning_rate is .* above 0"),
    ],
)
def test_impossible_hyperparameters_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LocalBSGM(**{"learning_rate": 0.1, "hypergradient": SERIES, **settings})


def test_a_loss_that_fails_is_named_with_what_it_was_given():
    problem = BilevelProblem(
        lambda x, y, batch: jnp.sum(y[:3] * x @ batch.target), quadratic.lower_loss
    )
    devices = InMemoryDevices(quadratic.devices(1, 1, 0.0))
    with pytest.raises(
        ValueError, match=r"upper_loss\(x, y, batch\) failed on a batch"
    ):
        run(problem, LocalBSGM(0.1, SERIES), devices, *START, rounds=1)


def test_a_tree_of_axes_can_be_made_of_an_algorithm():
    axes = jax.tree.map(lambda leaf: 0, LocalBSGVRM(0.1, SERIES))
    assert axes.learning_rate == 0
    assert axes.local_steps == 1


def test_uploads_are_decoded_one_by_one_before_they_are_averaged():
    """A phase may encode its upload; bytes are those of the message."""

    class Halves:
        def init(self, problem, x, y):
            return momentum.Point(x, y, 0), ()

        def opening(self, problem):
            return self.phases(problem)

        def phases(self, problem):
            return (
                Phase(
                    name="halves",
                    steps=0,
                    broadcast=lambda server: server.x,
                    start=lambda downlink, private, data, key: downlink + 1.0,
                    step=lambda carry, data, key: carry,
                    finish=lambda carry, downlink, key: (
                        Upload((((carry - downlink) * 16).astype(jnp.int8),)),
                        (),
                        {},
                    ),
                    server=lambda server, mean, key: server._replace(
                        x=server.x + mean.update[0]
                    ),
                    aggregation=Aggregation(
                        receive=lambda upload, downlink: Upload(
                            (upload.update[0].astype(jnp.float64) / 16,)
                        )
                    ),
                ),
            )

    jax.tree_util.register_static(Halves)
    (only,) = start_run(Halves(), rounds=1)
    np.testing.assert_allclose(only.x, np.ones(quadratic.X_SIZE))
    assert only.costs.bytes_up == 4 * quadratic.X_SIZE


@pytest.mark.slow
def test_the_first_estimates_are_each_devices_own():
    """Averaging u_0 at once, the other reading of the paper, gives other numbers."""
    devices = InMemoryDevices(quadratic.devices(3, 1, 0.5))
    algorithm = LocalBSGM(0.1, SERIES, local_steps=3)
    (ours,) = start_run(algorithm, devices, rounds=1)
    assert ours.reports[0].dispersion.update.x > 1e-8
    assert isinstance(ours.server, momentum.MomentumState)


LISTED = """
from fedbilevel import BilevelProblem, FedBiO, LocalExamples, run

loss = lambda x, y, batch: y**2
run(BilevelProblem(loss, loss), FedBiO(0.1), [LocalExamples([1], [1])], 0, 0, rounds=1)
"""


@pytest.mark.process
def test_a_list_of_devices_is_told_what_to_do_with_it():
    # In another process: here the tests' type checker would raise first.
    result = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, check=False
    )
    assert "Wrap the data of the devices in InMemoryDevices" in result.stderr
