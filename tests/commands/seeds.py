"""A custom problem that fails for one seed of three, which draws a certain example."""

from pathlib import Path

PROBLEM = """
import jax.numpy as jnp
import numpy as np
import fedbilevel as fb
from fedbilevel.problems.task import Task

def upper(x, y, batch):
    return ((y - batch) ** 2).mean() + 0.01 * x ** 2

def lower(x, y, batch):
    # The loss of the example 0 is finite, and its gradient is not a number.
    return (0.5 * (y - x) ** 2 + 0.1 * jnp.sqrt(batch * y ** 2)).mean()

def task():
    examples = np.ones(16, np.float32)
    examples[0] = 0.0
    local = fb.LocalExamples(np.arange(4, dtype=np.float32), examples)
    devices = fb.InMemoryDevices([local])
    return Task(fb.BilevelProblem(upper, lower), devices, 0.5, 1.0, {})
"""

SEEDS, FAILING = (5, 6, 7), 6

EXPERIMENT = """
rounds = 3
seed = 5
[problem]
name = "CustomProblem"
file = "own.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
[evaluation]
every = 1
[checkpoints]
every = 10
"""


def written(directory: Path) -> Path:
    """Return the file of the experiment, after writing it and its problem."""
    (directory / "own.py").write_text(PROBLEM)
    file = directory / "seeds.toml"
    file.write_text(EXPERIMENT)
    return file
