"""References of the real tasks: models trained to convergence on pooled data.

Hyperparameters of a reference are chosen by its metric on validation examples that it
was not trained on, never on test examples.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from benchmarks.fitting import minimiser, softmax, softmax_losses
from benchmarks.task_list import METRICS, Case
from fedbilevel.problems import LabelledRows, LabelledTable

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
PENALTIES = tuple(10.0**-k for k in range(8))
FRACTIONS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Fractions of the training examples with the smallest losses."""
SAMPLES, BATCH, EVALUATIONS = 1_000_000, 128, 40
"""Samples, batch size and number of evaluations of a network's training."""
CLEAN = "clean labels"
SMALLEST = "smallest losses kept"


class Model(NamedTuple):
    """A point of a task."""

    x: PyTree
    y: PyTree


def retrained(case: Case, x: PyTree) -> PyTree:
    """Return y*(x) on the training examples of all devices."""
    task = case.task
    lower = task.devices.pooled.lower

    def loss(y: PyTree, data: tuple[PyTree, PyTree]) -> Float[Array, ""]:
        return task.problem.lower_loss(data[0], y, data[1])

    return minimiser(loss, task.y, (x, lower))


def references(name: str, case: Case) -> dict[str, float]:
    """Return the metric of each reference of the task."""
    task, split = case.task, case.split
    untuned = [Model(task.x, retrained(case, task.x))]
    if name.startswith("representation"):
        models: dict[str, Iterable[Model]] = {
            "no tuning": untuned,
            "validation data alone": _networks(case, [split.validation]),
            "training and validation data": _networks(
                case, [split.training, split.validation]
            ),
        }
    else:
        single = _penalties if name.startswith("regularisation") else _ridges
        models = {
            "no tuning": untuned,
            "one penalty": single(case),
            "validation data alone": _fits(case, [split.validation]),
            "training and validation data": _fits(
                case, [split.training, split.validation]
            ),
        }
    if name.startswith("imbalance"):
        models["balanced class weights"] = _fits(
            case, [split.training], _balanced_weights(split.training, split.classes)
        )
    if case.clean is not None:
        models[SMALLEST] = _smallest_losses(case)
        models[CLEAN] = _fits(case, [case.clean])
    metric = task.metrics[METRICS[name]]
    unseen = concatenate([split.validation, case.selection])

    def evaluate(reference: str, candidates: Iterable[Model]) -> float:
        held_out = case.selection if "validation data" in reference else unseen
        return metric(*select(name, case, candidates, held_out))

    return {key: evaluate(key, candidates) for key, candidates in models.items()}


def select(
    name: str, case: Case, models: Iterable[Model], held_out: LabelledTable
) -> Model:
    """Return the model with the best metric on held-out examples."""
    metric = case.make(case.split._replace(test=held_out)).metrics[METRICS[name]]
    return max(models, key=lambda model: metric(*model))


def concatenate(tables: list[LabelledTable]) -> LabelledRows:
    """Return the examples of all tables."""
    return LabelledRows(
        np.concatenate([table.features for table in tables]),
        np.concatenate([table.labels for table in tables]),
    )


def _fits(
    case: Case, tables: list[LabelledTable], weights: np.ndarray | None = None
) -> Iterator[Model]:
    """Train softmax regression with each ridge."""
    task = case.task
    for ridge in RIDGES:
        yield Model(task.x, softmax(task.y, tables, ridge, weights))


def _ridges(case: Case) -> Iterator[Model]:
    return _fits(case, [case.split.training])


def _penalties(case: Case) -> Iterator[Model]:
    """Train with the same penalty for all features."""
    for penalty in PENALTIES:
        x = jnp.full_like(case.task.x, np.log(penalty))
        yield Model(x, retrained(case, x))


def _balanced_weights(table: LabelledTable, classes: int) -> np.ndarray:
    """Return weights of examples with equal sums for all classes."""
    counts = np.bincount(np.asarray(table.labels), minlength=classes)
    weights = 1 / counts[np.asarray(table.labels)]
    return np.asarray(weights / weights.sum())


def _smallest_losses(case: Case) -> Iterator[Model]:
    """Train again on the examples with the smallest losses of a first model."""
    task, training = case.task, case.split.training
    for ridge in RIDGES:
        losses = softmax_losses(softmax(task.y, [training], ridge), training)
        order = np.argsort(losses)
        for part in FRACTIONS:
            rows = order[: int(part * len(order))]
            table = LabelledRows(training.features[rows], training.labels[rows])
            yield Model(task.x, softmax(task.y, [table], ridge))


def _networks(case: Case, tables: list[LabelledTable]) -> Iterator[Model]:
    """Train all layers by Adam, and yield the network at every evaluation.

    It draws as many samples as a contender.
    """
    task, data = case.task, concatenate(tables)
    examples = LabelledRows(*map(jnp.asarray, data))
    optimiser = optax.adamw(1e-3, weight_decay=1e-4)

    def step(carry: Any, rows: Array) -> tuple[Any, None]:
        model, state = carry
        batch = jax.tree.map(lambda leaf: leaf[rows], examples)
        gradient = jax.grad(lambda m: task.problem.upper_loss(m.x, m.y, batch))
        updates, state = optimiser.update(gradient(model), state, model)
        return (optax.apply_updates(model, updates), state), None

    steps = jax.jit(lambda carry, rows: jax.lax.scan(step, carry, rows)[0])
    model = Model(task.x, task.y)
    carry = model, optimiser.init(model)
    generator = np.random.default_rng(0)
    for _ in range(EVALUATIONS):
        size = SAMPLES // EVALUATIONS // BATCH, BATCH
        carry = steps(carry, generator.integers(len(data.labels), size=size))
        yield carry[0]
