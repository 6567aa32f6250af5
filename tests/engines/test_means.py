"""Losses that are not finite or not means raise an error at the start of a run."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
    Run,
    run,
    sweep,
)
from fedbilevel.engines.loss_checks import require_mean
from fedbilevel.federation import Site
from fedbilevel.metrics import diagnose, newton_reference
from tests import quadratic


class Rows(NamedTuple):
    value: np.ndarray
    group: np.ndarray


def squares(y: Any, batch: Rows) -> Any:
    return (y * batch.value - 1) ** 2


def mean(x: Any, y: Any, batch: Rows) -> Any:
    return jnp.mean(squares(y, batch)) + x**2


def variance(x: Any, y: Any, batch: Rows) -> Any:
    return jnp.var(y * batch.value)


def mostly_mean(x: Any, y: Any, batch: Rows) -> Any:
    return mean(x, y, batch) + 0.01 * variance(x, y, batch)


def worst_group(x: Any, y: Any, batch: Rows) -> Any:
    members = [(batch.group == group).astype(float) for group in range(2)]
    losses = [
        jnp.sum(those * squares(y, batch)) / jnp.maximum(1, jnp.sum(those))
        for those in members
    ]
    return jnp.max(jnp.stack(losses))


def total(x: Any, y: Any, batch: Rows) -> Any:
    return jnp.sum(squares(y, batch))


def self_normalised(x: Any, y: Any, batch: Rows) -> Any:
    weights = jnp.exp(-batch.value)
    return jnp.sum(weights * squares(y, batch)) / jnp.sum(weights)


def rows(count: int = 9, dtype: Any = float) -> Rows:
    generator = np.random.default_rng(0)
    return Rows(generator.normal(size=count).astype(dtype), np.arange(count) % 2)


def begin(upper: Any, lower: Any, held: Rows | None = None, y: Any = 0.0) -> None:
    held = rows() if held is None else held
    devices = InMemoryDevices([LocalExamples(held, held)] * 2)
    algorithm = FedBiO(0.1, batch_size=3)
    run(BilevelProblem(upper, lower), algorithm, devices, 0.5 + 0 * y, y, rounds=1)


# At y = 0 a variance is zero, and so are its values on single examples.
@pytest.mark.parametrize(
    "loss", [variance, mostly_mean, worst_group, total, self_normalised]
)
def test_what_is_no_mean_is_refused_at_either_level(loss):
    for name, losses in (("upper_loss", (loss, mean)), ("lower_loss", (mean, loss))):
        with pytest.raises(ValueError, match=f"{name} is not a mean over its batch"):
            begin(*losses)


def test_the_message_has_both_numbers_and_the_cure():
    held = Rows(np.array([0.0, 2.0, 4.0]), np.zeros(3, int))
    with pytest.raises(ValueError, match="it is") as raised:
        begin(variance, mean, held, y=1.0)
    numbers = "it is 2.66667, but the mean of its values on each single example is 0"
    assert f"on 3 examples {numbers}" in str(raised.value)
    assert "the mean of (value − c)² with the centre c a part of y" in str(raised.value)


def test_labels_as_a_column_are_named():
    held = np.random.default_rng(0).normal(size=(5, 3)), np.arange(5.0)[:, None]

    def error(x, y, batch):
        inputs, labels = batch
        # Explicit, since tests forbid implicit broadcasting to another rank.
        return jnp.mean(((inputs @ y)[None] - labels) ** 2) + 0 * x

    with pytest.raises(ValueError, match="lower_loss is not a mean") as raised:
        require_mean("lower_loss", error, 0.5, np.ones(3), held)
    assert "have shapes [5, 3], [5, 1]: arrays of shapes [n, 1]" in str(raised.value)
    assert "Store labels with shape [n]" in str(raised.value)
    with pytest.raises(ValueError, match="not a mean") as raised:
        require_mean("lower_loss", total, 0.5, 0.0, rows())
    assert "shapes" not in str(raised.value)


@pytest.mark.parametrize("penalty", [jnp.square, lambda losses: jnp.exp(2 * losses)])
def test_what_the_message_gives_for_a_worst_group_is_a_mean(penalty):
    with pytest.raises(ValueError, match=r"mean of loss² or of exp\(c · loss\) over"):
        require_mean("upper_loss", worst_group, 0.5, 0.0, rows())

    def penalised(x, y, batch):
        return jnp.mean(penalty(squares(y, batch)))

    require_mean("upper_loss", penalised, 0.5, 0.0, rows())


def test_a_sum_is_found_out_on_a_single_example():
    with pytest.raises(ValueError, match="upper_loss is not a mean"):
        begin(total, mean, rows(1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_means_pass_in_any_precision(dtype):
    def cancelling(x, y, batch):
        far = jnp.asarray(30.0, y.dtype)
        return jnp.mean(squares(y, batch) + far) - far + x**2

    begin(mean, cancelling, rows(8, dtype), dtype(0.5))


def absent_group(x: Any, y: Any, batch: Rows) -> Any:
    """Return the worst mean of a group: 0 / 0 if a batch lacks a group."""
    members = [(batch.group == group).astype(float) for group in range(2)]
    losses = [jnp.sum(those * squares(y, batch)) / jnp.sum(those) for those in members]
    return jnp.max(jnp.stack(losses))


def logarithm(x: Any, y: Any, batch: Rows) -> Any:
    return jnp.mean(jnp.log(y * batch.value**2)) + x**2


def test_a_loss_that_is_not_finite_at_the_start_is_refused():
    for name, losses in (
        ("upper_loss", (absent_group, mean)),
        ("lower_loss", (mean, absent_group)),
    ):
        with pytest.raises(ValueError, match=f"{name} is not finite") as raised:
            begin(*losses)
        message = str(raised.value)
        assert "it is nan on 8 of 8 single examples. Likely causes" in message
        assert "the number of examples of a group that is absent" in message
    held = rows()
    held.value[0] = 0.0
    text = "it is -inf on 1 of 8 single examples and -inf on a batch of 8 examples"
    with pytest.raises(ValueError, match=text):
        begin(logarithm, mean, held, y=1.0)


def test_other_uses_of_a_loss_that_is_not_finite_are_refused_too():
    held = rows()
    problem = BilevelProblem(absent_group, mean)
    devices = InMemoryDevices([LocalExamples(held, held)] * 2)
    with pytest.raises(ValueError, match="upper_loss is not finite"):
        diagnose(problem, devices, 0.5, 0.0)
    with pytest.raises(ValueError, match="upper_loss is not finite"):
        newton_reference(problem, devices).lower_solution(0.5, 0.0)


def test_a_loss_may_be_infinite_near_the_start():
    held = rows()
    near = 1e-3  # the random point near it has a negative y
    assert not np.isfinite(logarithm(0.5, near - 0.02, held))
    require_mean("upper_loss", logarithm, 0.5, near, held)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_examples_and_points_that_are_not_finite_are_not_judged(wrong):
    held = rows()
    require_mean("lower_loss", mean, wrong, 1.0, held)
    held.value[0] = wrong
    require_mean("lower_loss", mean, 0.5, 1.0, held)


def test_a_loss_that_takes_no_single_example_is_not_judged():
    def of_pairs(x, y, batch):
        assert len(batch.value) > 1
        return mean(x, y, batch)

    begin(of_pairs, mean)


def test_other_ways_to_begin_refuse_too():
    problem, held = BilevelProblem(mean, variance), rows()
    local = LocalExamples(held, held)
    on_demand = OnDemandDevices(3, lambda device: local, 9, 9)
    algorithm, start = FedBiO(0.1), (jnp.array(0.5), jnp.array(0.0))
    with pytest.raises(ValueError, match="lower_loss is not a mean"):
        run(problem, algorithm, on_demand, *start, rounds=1)
    with pytest.raises(ValueError, match="lower_loss is not a mean"):
        Site(0, problem, algorithm, local, *start)
    with pytest.raises(ValueError, match="lower_loss is not a mean"):
        sweep(
            Run(problem, algorithm, InMemoryDevices([local]), *start, rounds=1),
            [algorithm],
            seeds=[0],
            measure=lambda server: server.x,
        )


@pytest.mark.slow
def test_a_traced_run_is_not_tried():
    held = quadratic.devices(2, 3, 0.1)

    @jax.jit
    def end(x):
        what = quadratic.problem(), FedBiO(0.1), InMemoryDevices(held)
        *_, last = run(*what, x, jnp.ones(quadratic.Y_SIZE), rounds=2)
        return last.x

    assert np.isfinite(end(jnp.ones(quadratic.X_SIZE))).all()


@pytest.mark.slow
def test_a_loss_that_closes_over_a_traced_value_is_not_tried():
    rows = np.ones(4)

    def end(penalty):
        def loss(x, y, batch):
            return jnp.mean((y - x * batch) ** 2) + penalty * y**2

        what = BilevelProblem(loss, loss), FedBiO(0.1)
        devices = InMemoryDevices([LocalExamples(rows, rows)])
        *_, last = run(*what, devices, jnp.ones(()), jnp.ones(()), rounds=1)
        return last.x

    assert np.isfinite(jax.vmap(end)(jnp.array([0.1, 0.2]))).all()
