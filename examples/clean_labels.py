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


class Spoilt(NamedTuple):
    """Digits of which many labels are wrong.

    Attributes:
        split: who holds which images; validation and test labels are right.
        wrong: which training labels are not; nobody is told.
    """

    split: Split
    wrong: Bool[np.ndarray, "training"]


def spoilt_digits() -> Spoilt:
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
    return Spoilt(split, redrawn.wrong)


def accuracy(task: Task, x: Float[Array, "_"]) -> float:
    """Train to the end under x; return the accuracy on test images."""
    y = newton_reference(task.problem, task.devices).lower_solution(x, task.y)
    return task.metrics["accuracy"](x, y)


def validation_alone(split: Split) -> float:
    """Return the accuracy of a model that has seen nothing but validation images."""
    table, rows = split.validation, split.validation_rows
    alone = Split(table, table, split.test, rows, rows, split.classes)
    task = regularisation(alone, penalty=RIDGE)
    return accuracy(task, task.x)


def main() -> None:
    """Learn how far to trust each label, and see what it was good for."""
    split, wrong = spoilt_digits()
    task = hyper_cleaning(split, ridge=RIDGE, wrong=wrong)
    algorithm = fb.FedBiO(
        learning_rate=1.0,
        upper_rate=0.03,
        lower_rate=0.3,
        adjoint_rate=0.3,
        local_steps=5,
        batch_size=16,
    )
    *_, done = fb.run(task.problem, algorithm, task.devices, task.x, task.y, rounds=150)
    # An example has the weight σ(√n x_i): one half where x_i is zero.
    distrusted = np.asarray(done.x) < 0
    print(f"labels: {len(wrong)}, of which wrong: {wrong.sum()}")
    print(
        f"labels that are distrusted: {distrusted.sum()}, "
        f"of which wrong: {(distrusted & wrong).sum()}"
    )
    print(f"area under the curve: {task.metrics['detection'](done.x, done.y):.3f}")
    everything = jnp.ones(len(wrong))  # so large that each weight is 1
    truth = jnp.where(wrong, -1.0, 1.0)
    for words, value in {
        "all labels as they are": accuracy(task, everything),
        "labels weighed as learnt": accuracy(task, done.x),
        "right labels only, known to nobody": accuracy(task, truth),
        "validation images only": validation_alone(split),
    }.items():
        print(f"test accuracy, {words}: {value:.3f}")


if __name__ == "__main__":
    main()
