"""Four custom problems, each with two losses and some data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Task

DEVICES = 4


def ridge() -> Task:
    """Return a task: one penalty of a linear model, scikit-learn's diabetes data."""
    data = load_diabetes()
    features = _standardise(data.data)
    target = _standardise(data.target)

    def error(y: Any, batch: Any) -> Any:
        rows, values = batch
        return jnp.mean((rows @ y - values) ** 2)

    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: error(y, batch),
        lower_loss=lambda x, y, batch: error(y, batch) + jnp.exp(x) * jnp.sum(y**2),
    )
    start = jnp.zeros(()), jnp.zeros(features.shape[1])
    return Task(problem, _partition((features, target), upper=0.5), *start, {})


def fairness() -> Task:
    """Return a task: weights of three groups, squared validation losses."""
    generator = np.random.default_rng(0)
    group = generator.choice(3, 2_000, p=[0.8, 0.15, 0.05])
    features = generator.normal(size=(len(group), 6))
    slopes = generator.normal(size=(3, 6)) + np.array([[2.0], [0.0], [-1.0]])
    score = np.sum(features * slopes[group], axis=1)
    label = (score + generator.normal(size=len(group)) > 0).astype(np.float32)

    def losses(y: Any, batch: Any) -> jax.Array:
        rows, labels, _ = batch
        scores = rows @ y
        return jnp.subtract(jax.nn.softplus(scores), labels * scores)

    def lower_loss(x: Any, y: Any, batch: Any) -> Any:
        weights = 3 * jax.nn.softmax(x)[batch[2]]
        return jnp.mean(weights * losses(y, batch)) + 1e-3 * jnp.sum(y**2)

    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(losses(y, batch) ** 2),
        lower_loss=lower_loss,
    )
    arrays = features.astype(np.float32), label, group.astype(np.int32)
    return Task(problem, _partition(arrays, upper=0.3), jnp.zeros(3), jnp.zeros(6), {})


def weight_decay() -> Task:
    """Return a task: a penalty for each layer of a network, a non-convex loss."""
    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.target))[:600]
    features = (data.data[rows] / 16).astype(np.float32)
    labels = data.target[rows].astype(np.int32)
    generator = np.random.default_rng(1)
    start = {
        "hidden": jnp.asarray(generator.normal(size=(64, 16)) / 8, jnp.float32),
        "output": jnp.asarray(generator.normal(size=(16, 10)) / 4, jnp.float32),
    }

    def error(y: Any, batch: Any) -> Any:
        rows, labels = batch
        scores = jax.nn.log_softmax(jnp.tanh(rows @ y["hidden"]) @ y["output"])
        chosen = jnp.take_along_axis(scores, labels[:, None], axis=1)
        return -jnp.mean(chosen)

    def lower_loss(x: Any, y: Any, batch: Any) -> Any:
        sizes = jax.tree.map(lambda leaf: jnp.sum(leaf**2), y)
        penalty = sum(jnp.exp(x[name]) * sizes[name] for name in y)
        return error(y, batch) + penalty

    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: error(y, batch), lower_loss=lower_loss
    )
    decay = {name: jnp.asarray(np.log(1e-2), jnp.float32) for name in start}
    return Task(problem, _partition((features, labels), upper=0.5), decay, start, {})


def instruments() -> Task:
    """Return the task of docs/tutorials/custom-problem.md: six instrument weights."""
    generator = np.random.default_rng(0)
    coefficients = generator.normal(size=5)
    count = 4 * 360
    instrument = np.tile(np.repeat(np.arange(6), 60), 4)
    symptoms = generator.normal(size=(count, 5))
    level = symptoms @ coefficients + 0.5 * generator.normal(size=count)
    checked = np.arange(count) % 4 == 0
    reading = np.where((instrument == 2) & ~checked, -level, level)
    noise = 4 * generator.normal(size=count)
    reading = np.where((instrument == 5) & ~checked, noise, reading)
    arrays = (
        symptoms.astype(np.float32),
        reading.astype(np.float32),
        instrument.astype(np.int32),
    )

    def lower_loss(x: Any, y: Any, batch: Any) -> Any:
        symptoms, readings, instruments = batch
        weights = 6 * jax.nn.softmax(x)[instruments]
        errors = (symptoms @ y - readings) ** 2
        return jnp.mean(weights * errors) + 0.01 * jnp.sum(y**2)

    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2),
        lower_loss=lower_loss,
    )
    hospitals = np.arange(count) // 360
    examples = [
        LocalExamples(
            upper=tuple(a[(hospitals == k) & checked] for a in arrays),
            lower=tuple(a[(hospitals == k) & ~checked] for a in arrays),
        )
        for k in range(DEVICES)
    ]
    return Task(problem, InMemoryDevices(examples), jnp.zeros(6), jnp.zeros(5), {})


PROBLEMS: dict[str, Callable[[], Task]] = {
    "instruments": instruments,
    "ridge": ridge,
    "fairness": fairness,
    "weight decay": weight_decay,
}


def _standardise(values: Any) -> Any:
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)


def _partition(arrays: tuple[np.ndarray, ...], upper: float) -> InMemoryDevices:
    """Return devices with a random partition of rows, `upper` for the upper loss."""
    rows = np.random.default_rng(2).permutation(len(arrays[0]))
    parts = np.array_split(rows, DEVICES)

    def local_examples(part: np.ndarray) -> LocalExamples:
        cut = int(upper * len(part))
        return LocalExamples(
            upper=tuple(array[part[:cut]] for array in arrays),
            lower=tuple(array[part[cut:]] for array in arrays),
        )

    return InMemoryDevices([local_examples(part) for part in parts])
