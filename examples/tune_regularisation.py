"""Tune a penalty for each pixel of handwritten digits, on 8 devices.

The tutorial is docs/tutorials/regularisation.md. Run this by

    python examples/tune_regularisation.py
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedbilevel as fb
from fedbilevel import datasets
from fedbilevel.metrics import Reference, newton_reference
from fedbilevel.problems import Split, Task, regularisation


def digits_task() -> Task:
    """Return the task with 20 training and 100 validation images per device."""
    table = datasets.digits()
    order = np.random.default_rng(0).permutation(len(table.train.labels))
    split = Split(
        training=table.train,
        validation=table.train,
        test=table.test,
        training_rows=np.split(order[:160], 8),
        validation_rows=np.split(order[160:960], 8),
        classes=10,
    )
    return regularisation(split, penalty=0.01)


def evaluate(task: Task, reference: Reference, x: Float[Array, "pixels"]) -> str:
    """Train with the penalties e^x to convergence, and return the metrics as text."""
    y = reference.lower_solution(x, task.y)
    loss = task.problem.upper_loss(x, y, task.devices.pooled.upper)
    accuracy = task.metrics["accuracy"](x, y)
    return f"validation loss {loss:.3f}, test accuracy {accuracy:.3f}"


def main() -> None:
    """Evaluate single penalties, then tune 64 of them."""
    task = digits_task()
    reference = newton_reference(task.problem, task.devices)
    for penalty in (0.01, 0.003, 0.001, 0.0003):
        x = jnp.full(64, np.log(penalty))
        print(f"penalty {penalty} on every pixel: {evaluate(task, reference, x)}")
    algorithm = fb.LocalBSGVRM(
        learning_rate=0.5,
        upper_rate=50.0,
        upper_mixing=2.0,
        lower_mixing=2.0,
        hypergradient=fb.NeumannSeries(terms=5, scale=0.5),
        local_steps=5,
        batch_size=16,
    )
    rounds = fb.run(task.problem, algorithm, task.devices, task.x, task.y, rounds=100)
    for r in rounds:
        if (r.number + 1) % 25 == 0:
            megabytes = r.costs.bytes_up / 1e6
            print(f"{r.number + 1} rounds, {megabytes:.1f} MB uploaded")
    print(f"tuned for each pixel: {evaluate(task, reference, r.x)}")


if __name__ == "__main__":
    main()
