"""A small custom problem in one file, as a user would write it.

Sites fit y to x by ridge regression, and the upper loss pulls y to their targets.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Model, Task

SIZES = {"north": 3, "east": 8, "south": 5, "west": 6}  # Ragged sizes.
X_SIZE, Y_SIZE = 2, 3
START = np.linspace(-1.0, 1.0, X_SIZE), np.linspace(1.0, 2.0, Y_SIZE)
# This variable names a file with the seconds of each measurement: tests that need a
# running job make it slow.
PACE = "FEDBILEVEL_TEST_PACE"
# "torch" in this variable makes the losses those of tensors.
LIBRARY = "FEDBILEVEL_TEST_LIBRARY"


class Rows(NamedTuple):
    features: np.ndarray
    mixed: np.ndarray
    label: np.ndarray


# The losses use methods that arrays of JAX and tensors of PyTorch share.
def upper_loss(x, y, target):
    pulled = 0.5 * ((y[None] - target) ** 2).sum(1).mean()
    return pulled + 0.15 * (x**2).sum()


def lower_loss(x, y, rows):
    errors = rows.features @ y - rows.mixed @ x - rows.label
    return 0.5 * (errors**2).mean() + 0.5 * (y**2).sum()


def problem():
    if os.environ.get(LIBRARY) == "torch":
        from fedbilevel.torch import bilevel_problem

        return bilevel_problem(upper_loss, lower_loss)
    return BilevelProblem(upper_loss, lower_loss)


def examples(site):
    size = SIZES[site]
    generator = np.random.default_rng(size)
    rows = Rows(
        0.5 * generator.normal(size=(size, Y_SIZE)),
        generator.normal(size=(size, X_SIZE)),
        generator.normal(size=size),
    )
    return LocalExamples(generator.normal(size=(size + 1, Y_SIZE)), rows)


def at_pace(y):
    file = Path(os.environ.get(PACE, ""))
    if file.is_file():
        time.sleep(float(file.read_text()))
    return float(np.asarray(y) @ np.array([1.0, 2.0, 4.0]))


def model():
    metrics = {
        "x": lambda x, y: float(np.asarray(x) @ np.array([1.0, 2.0])),
        "y": lambda x, y: at_pace(y),
    }
    form = LocalExamples(
        np.zeros((1, Y_SIZE)),
        Rows(np.zeros((1, Y_SIZE)), np.zeros((1, X_SIZE)), np.zeros(1)),
    )
    return Model(problem(), *START, metrics, form)


def task():
    stated, x, y, metrics, _ = model()
    return Task(stated, InMemoryDevices(list(map(examples, SIZES))), x, y, metrics)
