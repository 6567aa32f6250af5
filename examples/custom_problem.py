"""State a custom problem: tune a weight for each of six instruments.

The tutorial is docs/tutorials/custom-problem.md. Run this by

    python examples/custom_problem.py
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import fedbilevel as fb
from fedbilevel.metrics import newton_reference
from fedbilevel.problems import Task

INSTRUMENTS, SYMPTOMS = 6, 5

Rows = tuple[Float[Array, "rows symptoms"], Float[Array, "rows"], Int[Array, "rows"]]
"""Symptoms, readings, and the instrument of each reading."""


def upper_loss(
    x: Float[Array, "instruments"], y: Float[Array, "symptoms"], batch: Rows, /
) -> Float[Array, ""]:
    """Return the error of the model y on checked readings."""
    symptoms, readings, _ = batch
    return jnp.mean((symptoms @ y - readings) ** 2)


def lower_loss(
    x: Float[Array, "instruments"], y: Float[Array, "symptoms"], batch: Rows, /
) -> Float[Array, ""]:
    """Return the error on other readings, weighted by instrument, plus a penalty."""
    symptoms, readings, instruments = batch
    weights = INSTRUMENTS * jax.nn.softmax(x)[instruments]
    errors = (symptoms @ y - readings) ** 2
    return jnp.mean(weights * errors) + 0.01 * jnp.sum(y**2)


def hospitals() -> list[fb.LocalExamples]:
    """Return readings of four hospitals; two of the instruments are faulty."""
    generator = np.random.default_rng(0)
    coefficients = generator.normal(size=SYMPTOMS)

    def hospital() -> fb.LocalExamples:
        instrument = np.repeat(np.arange(INSTRUMENTS, dtype=np.int32), 60)
        count = len(instrument)
        symptoms = generator.normal(size=(count, SYMPTOMS)).astype(np.float32)
        level = symptoms @ coefficients + 0.5 * generator.normal(size=count)
        checked = np.arange(count) % 4 == 0
        noise = 4 * generator.normal(size=count)
        reading = np.where((instrument == 2) & ~checked, -level, level)
        reading = np.where((instrument == 5) & ~checked, noise, reading)
        columns = symptoms, reading.astype(np.float32), instrument
        return fb.LocalExamples(
            upper=tuple(column[checked] for column in columns),
            lower=tuple(column[~checked] for column in columns),
        )

    return [hospital() for _ in range(4)]


def task() -> Task:
    """Return the problem, the data and the initial point."""
    return Task(
        problem=fb.BilevelProblem(upper_loss, lower_loss),
        devices=fb.InMemoryDevices(hospitals()),
        x=jnp.zeros(INSTRUMENTS),
        y=jnp.zeros(SYMPTOMS),
        metrics={"smallest_weight": lambda x, y: float(jax.nn.softmax(x).min())},
    )


def main() -> None:
    """Tune the weights in a run that is stopped and resumed."""
    problem, devices, x, y, _ = task()
    algorithm = fb.FedBiO(0.1, local_steps=2, batch_size=10)
    run = fb.Run(problem, algorithm, devices, x, y, rounds=200)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = fb.Checkpoints(directory, every=50)
        for r in run.start(checkpoints):
            if r.number + 1 == 120:  # as after Ctrl-C
                break
        print(f"stopped after {r.number + 1} rounds")
        rounds = run.resume(checkpoints)
        print(f"resumed with round {next(rounds).number + 1}")
        *_, last = rounds
    weights = np.asarray(jax.nn.softmax(last.x))
    print("weights:", " ".join(f"{weight:.2f}" for weight in weights))
    print("instruments with the smallest weights:", *sorted(np.argsort(weights)[:2]))
    reference = newton_reference(problem, devices)
    for name, point in (("equal", x), ("tuned", last.x)):
        trained = reference.lower_solution(point, y)
        error = upper_loss(point, trained, devices.pooled.upper)
        print(f"error on checked readings, {name} weights: {error:.3f}")


if __name__ == "__main__":
    main()
