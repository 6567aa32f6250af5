"""A custom problem is read from its file."""

import numpy as np

from fedbilevel.experiments.custom_problem import custom_task
from tests.commands.seeds import PROBLEM

DRAWN = PROBLEM.replace("def task():", "rng = np.random.default_rng(0)\ndef task():")
DRAWN = DRAWN.replace("np.ones(16, np.float32)", "rng.random(16, np.float32)")


def test_a_file_gives_the_same_task_until_it_is_edited(tmp_path):
    # All runs of a comparison then share the compiled losses.
    file = tmp_path / "custom.py"
    file.write_text(PROBLEM)
    first = custom_task(file).problem
    assert custom_task(file).problem == first
    file.write_text(PROBLEM.replace("0.01", "0.02"))
    edited = custom_task(file).problem
    assert edited != first
    assert edited.upper_loss(1.0, 0.0, np.zeros(2)) == 0.02


def test_a_generator_of_the_file_gives_every_run_the_same_examples(tmp_path):
    file = tmp_path / "custom.py"
    file.write_text(DRAWN)
    first, second = (
        custom_task(file).devices.cohort(np.array([0])).lower.arrays for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
