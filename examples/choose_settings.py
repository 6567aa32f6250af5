"""Choose local steps, rates, terms and batch sizes, each by a measurement.

The tutorial is docs/tutorials/choosing.md. Run this by

    python examples/choose_settings.py
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedbilevel as fb
from fedbilevel import datasets
from fedbilevel.metrics import largest_curvature, newton_reference
from fedbilevel.problems import LabelledRows, Split, Task, regularisation

TARGET = 0.75
"""Validation loss to reach."""


def digits_task(penalty: float) -> Task:
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
    return regularisation(split, penalty=penalty)


def curvature(task: Task) -> float:
    """Return L at the initial point."""
    return largest_curvature(task.problem, task.devices, task.x, task.y)


class ExactSolution(NamedTuple):
    """The exact lower solution and hypergradient at the initial x.

    Attributes:
        y: y*(x).
        hypergradient: ∇Φ(x).
    """

    y: Float[np.ndarray, "classes pixels"]
    hypergradient: Float[np.ndarray, "pixels"]

    def error(self, estimate: Float[Array | np.ndarray, "pixels"]) -> float:
        """Return the relative error of an estimate."""
        distance = np.linalg.norm(estimate - self.hypergradient)
        return float(distance / np.linalg.norm(self.hypergradient))


def exact_solution(task: Task) -> ExactSolution:
    """Return y*(x) and ∇Φ(x) at the initial x."""
    reference = newton_reference(task.problem, task.devices)
    y = reference.lower_solution(task.x, task.y)
    return ExactSolution(y, reference.hypergradient(task.x, y))


def series_errors(task: Task, exact: ExactSolution, scale: float) -> dict[int, float]:
    """Return the relative error of the series on all examples, by number of terms."""
    upper, lower = task.devices.pooled
    errors: dict[int, float] = {}
    for terms in (1, 3, 10, 30):
        samples = fb.Samples(upper, lower, lower, (lower,) * terms)
        series = fb.NeumannSeries(terms, scale)
        errors[terms] = exact.error(series(task.problem, task.x, exact.y, samples))
    return errors


def batch_errors(task: Task, exact: ExactSolution, scale: float) -> dict[int, float]:
    """Return the relative error of a series of 10 terms, by batch size."""
    generator = np.random.default_rng(0)
    series = fb.NeumannSeries(10, scale)

    @jax.jit
    def estimate(samples: fb.Samples) -> Float[Array, "pixels"]:
        result: Float[Array, "pixels"] = series(task.problem, task.x, exact.y, samples)
        return result

    def draw(table: LabelledRows, size: int) -> LabelledRows:
        rows = generator.integers(len(table.labels), size=size)
        return LabelledRows(table.features[rows], table.labels[rows])

    upper, lower = task.devices.pooled
    errors: dict[int, float] = {}
    for size in (1, 16, 256):
        trials: list[float] = []
        for _ in range(20):
            first, *curvature = (draw(lower, size) for _ in range(11))
            samples = fb.Samples(draw(upper, size), first, first, tuple(curvature))
            trials.append(exact.error(estimate(samples)))
        errors[size] = float(np.mean(trials))
    return errors


def swept_losses(task: Task, algorithm: fb.LocalBSGM) -> dict[float, float]:
    """Return the validation loss after 40 rounds, by the rate of y."""
    upper = jax.tree.map(jnp.asarray, task.devices.pooled.upper)

    def measure(server: Any) -> Float[Array, ""]:
        return task.problem.upper_loss(server.x, server.y, upper)

    rates = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    swept = fb.sweep(
        fb.Run(task.problem, algorithm, task.devices, task.x, task.y, rounds=40),
        [replace(algorithm, lower_rate=rate) for rate in rates],
        seeds=[0, 1],
        measure=measure,
    )
    last = np.asarray(swept.measurements[:, :, -1]).mean(axis=1)
    return dict(zip(rates, last.tolist(), strict=True))


def costs_to_target(task: Task, algorithm: fb.LocalBSGM) -> fb.Costs:
    """Return the costs until the validation loss is below the target."""
    loss = jax.jit(task.problem.upper_loss)
    upper = task.devices.pooled.upper
    for r in fb.run(task.problem, algorithm, task.devices, task.x, task.y, rounds=400):
        if loss(r.x, r.y, upper) < TARGET:
            break
    return r.costs


def main() -> None:
    """Measure the effect of each setting."""
    for penalty in (1.0, 0.1):
        task = digits_task(penalty)
        bound = curvature(task)
        print(f"penalty {penalty}: L is {bound:.2f}, 1/L is {1 / bound:.2f}")
        exact = exact_solution(task)
        for terms, error in series_errors(task, exact, 0.9 / bound).items():
            print(f"  all examples, {terms} terms: relative error {error:.1%}")
        if penalty == 1.0:
            for size, error in batch_errors(task, exact, 0.9 / bound).items():
                print(f"  batches of {size}, 10 terms: relative error {error:.1%}")
    algorithm = fb.LocalBSGM(
        learning_rate=1.0,
        upper_rate=3.0,
        upper_mixing=0.5,
        lower_mixing=0.5,
        hypergradient=fb.NeumannSeries(terms=3, scale=0.5),
        local_steps=5,
        batch_size=16,
    )
    for rate, loss in swept_losses(task, algorithm).items():
        print(f"lower_rate {rate}: validation loss {loss:.3g}")
    good = replace(algorithm, lower_rate=0.5, upper_rate=5.0)
    for steps in (1, 20):
        costs = costs_to_target(task, replace(good, local_steps=steps))
        print(
            f"{steps} local steps: {costs.exchanges} exchanges, {costs.samples} samples"
        )
    run = fb.Run(task.problem, good, task.devices, task.x, task.y, rounds=100)
    for participants in (8, 10_000):
        costs = fb.predict_costs(run, participants)
        print(f"{participants} devices, 100 rounds: {costs.bytes_up / 1e6:.1f} MB up")


if __name__ == "__main__":
    main()
