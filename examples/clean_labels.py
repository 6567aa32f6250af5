"""Find wrong labels among training images that 8 devices hold.

The tutorial is docs/tutorials/cleaning.md. Run this by

    python examples/clean_labels.py
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

import fedbilevel as fb
from fedbilevel import datasets
from fedbilevel.metrics import newton_reference
from fedbilevel.problems import (
    LabelledRows,
    Split,
    Task,
    hyper_cleaning,
    redraw_labels,
    regularisation,
)

TRAINING, RIDGE = 1200, 0.001


class CorruptedDigits(NamedTuple):
    """Digits with corrupted training labels.

    Attributes:
        split: images of each device; validation and test labels are correct.
        wrong: mask of the wrong training labels; used for metrics only.
    """

    split: Split
    wrong: Bool[np.ndarray, "training"]


def corrupted_digits() -> CorruptedDigits:
    """Return 150 training and about 30 validation images for each of 8 devices."""
    images, digits = datasets.digits().train
    redrawn = redraw_labels(digits[:TRAINING], share=0.4, classes=10)
    split = Split(
        training=LabelledRows(images[:TRAINING], redrawn.labels),
        validation=LabelledRows(images[TRAINING:], digits[TRAINING:]),
        test=datasets.digits().test,
        training_rows=np.array_split(np.arange(TRAINING), 8),
        validation_rows=np.array_split(np.arange(len(digits) - TRAINING), 8),
        classes=10,
    )
    return CorruptedDigits(split, redrawn.wrong)


def accuracy(task: Task, x: Float[Array, "_"]) -> float:
    """Train to convergence with x fixed, and return the accuracy on test images."""
    y = newton_reference(task.problem, task.devices).lower_solution(x, task.y)
    return task.metrics["accuracy"](x, y)


def validation_alone(split: Split) -> float:
    """Return the test accuracy of a model trained on validation images only."""
    table, rows = split.validation, split.validation_rows
    alone = Split(table, table, split.test, rows, rows, split.classes)
    task = regularisation(alone, penalty=RIDGE)
    return accuracy(task, task.x)


def main() -> None:
    """Tune a weight for each label, and compare the accuracies of four models."""
    split, wrong = corrupted_digits()
    task = hyper_cleaning(split, ridge=RIDGE, wrong=wrong)
    algorithm = fb.FedBiO(
        learning_rate=1.0,
        upper_rate=0.03,
        lower_rate=0.3,
        adjoint_rate=0.3,
        local_steps=5,
        batch_size=16,
    )
    *_, last = fb.run(task.problem, algorithm, task.devices, task.x, task.y, rounds=150)
    # An example has the weight σ(√n x_i): one half where x_i is zero.
    distrusted = np.asarray(last.x) < 0
    print(f"labels: {len(wrong)}, of which wrong: {wrong.sum()}")
    print(
        f"labels distrusted: {distrusted.sum()}, "
        f"of which wrong: {(distrusted & wrong).sum()}"
    )
    print(f"area under the curve: {task.metrics['detection'](last.x, last.y):.3f}")
    equal = jnp.ones(len(wrong))  # σ(√n) is 1 up to rounding
    correct = jnp.where(wrong, -1.0, 1.0)
    for name, value in {
        "all labels, equal weights": accuracy(task, equal),
        "all labels, tuned weights": accuracy(task, last.x),
        "correct labels only": accuracy(task, correct),
        "validation images only": validation_alone(split),
    }.items():
        print(f"test accuracy, {name}: {value:.3f}")


if __name__ == "__main__":
    main()
