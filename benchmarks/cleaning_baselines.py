"""The README's example compared with baselines on the same images.

`python -m benchmarks.cleaning_baselines` splits the digits with each seed and prints
the accuracy on test images of softmax regression

- at the start;
- trained on the training images without tuning;
- trained on them with the best single penalty of `PENALTIES`, by the accuracy on
  validation images;
- trained on validation images alone, and on both together, with the penalty that is
  best on the test images, which favours these two baselines;
- with a weight for each training image, tuned by AutoFedBiO.

AutoFedBiO has no rates to choose. Its number of rounds was chosen on 240 of the 1,200
images of the README's devices, held out: the accuracy on them, a mean of 3 draws, was
0.862 after 200 rounds, 0.898 after 500 and 0.904 after 1,000. Tuning must exceed the
best baseline on every split.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from sklearn.datasets import load_digits

from benchmarks.timing import Bound, conclude, print_table, wants_fast
from fedbilevel import AutoFedBiO, BilevelProblem, InMemoryDevices, LocalExamples, run
from fedbilevel.problems.split import LabelledRows

DEVICES, VALIDATION, TRAINING, WRONG = 8, 10, 140, 63
"""Numbers of validation and training images and of wrong labels of a device."""
PENALTIES = np.logspace(-5, 1, 25)
RIDGE = 0.003
SEEDS = range(10, 15)
ALGORITHM = AutoFedBiO(rounds=500)
START = jnp.zeros((10, 64))
NAMES = (
    "at the start",
    "trained without tuning",
    "best single penalty",
    "validation images alone",
    "training and validation images",
    "tuned",
)


class Digits(NamedTuple):
    """The split of the digits in the README's example."""

    training: LabelledRows
    validation: LabelledRows
    test: LabelledRows
    devices: InMemoryDevices


def split(seed: int) -> Digits:
    """Return a random split, with wrong labels among the training images."""
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    rows = np.random.default_rng(seed).permutation(len(digits))
    assigned = rows[: DEVICES * (VALIDATION + TRAINING)].reshape(DEVICES, -1)
    validation, training = np.split(assigned, [VALIDATION], axis=1)
    labels = digits.copy()
    wrong = training[:, :WRONG]
    labels[wrong] = (labels[wrong] + 1) % 10
    numbers = np.arange(training.size).reshape(training.shape)

    def table(rows: Int[np.ndarray, "..."]) -> LabelledRows:
        return LabelledRows(images[rows.ravel()], labels[rows.ravel()])

    devices = [
        LocalExamples(upper=(images[v], labels[v]), lower=(images[t], labels[t], n))
        for v, t, n in zip(validation, training, numbers, strict=True)
    ]
    test = rows[assigned.size :]
    return Digits(
        table(training), table(validation), table(test), InMemoryDevices(devices)
    )


def losses(
    y: Float[Array, "classes pixels"],
    images: Float[Array | np.ndarray, "batch pixels"],
    labels: Int[Array | np.ndarray, "batch"],
) -> Float[Array, "batch"]:
    """Return the cross-entropy of each image."""
    scores = jax.nn.log_softmax(jnp.asarray(images) @ y.T)
    return -jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]


def upper_loss(x: Array, y: Array, batch: tuple[Array, Array]) -> Float[Array, ""]:
    """Return the loss on validation images."""
    return jnp.mean(losses(y, *batch))


def lower_loss(
    x: Array, y: Array, batch: tuple[Array, Array, Array]
) -> Float[Array, ""]:
    """Return the loss on training images, weighted by σ(x), with a penalty."""
    images, labels, numbers = batch
    weighted = jax.nn.sigmoid(x[numbers]) * losses(y, images, labels)
    return jnp.mean(weighted) + 0.5 * RIDGE * jnp.sum(y**2)


@jax.jit
def penalised(
    flat: Float[Array, "weights"], table: LabelledRows, penalty: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, "weights"]]:
    """Return the loss of softmax regression with one penalty, and its gradient."""

    def loss(flat: Float[Array, "weights"]) -> Float[Array, ""]:
        mean = jnp.mean(losses(flat.reshape(START.shape), *table))
        return mean + 0.5 * penalty * jnp.sum(flat**2)

    return jax.value_and_grad(loss)(flat)


def fit(table: LabelledRows, penalty: float) -> Float[np.ndarray, "classes pixels"]:
    """Return softmax regression with one penalty, trained to convergence."""

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = penalised(jnp.asarray(vector, START.dtype), table, penalty)
        return float(value), np.asarray(gradient, float)

    result = minimize(evaluate, np.zeros(START.size), jac=True, method="L-BFGS-B")
    weights: np.ndarray = result.x.reshape(START.shape)
    return weights


PROBLEM = BilevelProblem(upper_loss, lower_loss)


def accuracy(y: Array | np.ndarray, table: LabelledRows) -> float:
    """Return the share of images that y classifies correctly."""
    guesses = np.argmax(table.features @ np.asarray(y).T, axis=1)
    return float(np.mean(guesses == table.labels))


def accuracies(seed: int) -> dict[str, float]:
    """Return the test accuracy of each method on one split."""
    digits = split(seed)

    def train(algorithm: AutoFedBiO) -> Array:
        x = jnp.zeros(DEVICES * TRAINING)
        *_, last = run(
            PROBLEM,
            algorithm,
            digits.devices,
            x,
            START,
            rounds=algorithm.rounds,
            seed=seed,
        )
        y: Array = last.y
        return y

    def best(
        table: LabelledRows, score: Callable[[np.ndarray], float]
    ) -> Float[np.ndarray, "classes pixels"]:
        return max((fit(table, penalty) for penalty in PENALTIES), key=score)

    def score_on(table: LabelledRows) -> Callable[[np.ndarray], float]:
        return lambda y: accuracy(y, table)

    training, validation, test, _ = digits
    pooled = LabelledRows(*map(np.concatenate, zip(training, validation, strict=True)))
    models: tuple[Array | np.ndarray, ...] = (
        START,
        train(replace(ALGORITHM, upper_rate=0.0)),
        best(training, score_on(validation)),
        best(validation, score_on(test)),
        best(pooled, score_on(test)),
        train(ALGORITHM),
    )
    return {name: accuracy(y, test) for name, y in zip(NAMES, models, strict=True)}


def main() -> None:
    fast = wants_fast(__doc__, "one split")
    seeds = SEEDS[:1] if fast else SEEDS
    results = [accuracies(seed) for seed in seeds]
    rows = [
        (name, *(f"{value:.3f}" for value in (*values, mean(values))))
        for name, values in ((n, [result[n] for result in results]) for n in NAMES)
    ]
    print_table(("test accuracy", *(f"split {seed}" for seed in seeds), "mean"), rows)
    *others, tuned = NAMES
    margins = (
        result[tuned] - max(result[name] for name in others) for result in results
    )
    conclude([Bound("tuned above the best other", min(margins), 0.0, at_least=True)])


if __name__ == "__main__":
    main()
