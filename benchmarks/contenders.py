"""The algorithms that compete on the real tasks, each with its grid of settings.

All get twelve settings: six upper step lengths, in the same unit, so that a step of the
one is a step of the other, times two of what matters next to each; what else a method
has is fixed at values that are reasonable for it and written here.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedbilevel import (
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    ShroFBO,
    SimFBO,
)
from fedbilevel.problems import Task

LOCAL_STEPS = 5
UPPER_STEPS = tuple(10 ** (k / 2) for k in range(6))
"""In units of a task's smallest."""


class Steps(NamedTuple):
    """One setting of the grid.

    Attributes:
        upper: the step length for x.
        lower: the step length for y, and for z where there is one; in the grid, a part
            of 1/L, with L the largest curvature of the lower loss at the start.
        terms: Q of a Neumann series.
        scale: θ of a Neumann series.
        batch_size: of every batch.
        examples_per_step: what ShroFBO's devices make one local step of.
    """

    upper: float
    lower: float
    terms: int
    scale: float
    batch_size: int
    examples_per_step: int


def local_bsgm(steps: Steps) -> LocalBSGM:
    return LocalBSGM(
        1.0,
        NeumannSeries(steps.terms, steps.scale),
        upper_rate=steps.upper,
        lower_rate=steps.lower,
        upper_mixing=0.3,
        lower_mixing=0.3,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
    )


def local_bsgvrm(steps: Steps) -> LocalBSGVRM:
    return LocalBSGVRM(
        1.0,
        NeumannSeries(steps.terms, steps.scale),
        upper_rate=steps.upper,
        lower_rate=steps.lower,
        upper_mixing=0.1,
        lower_mixing=0.1,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
        opening_batch_size=4 * steps.batch_size,
    )


def fednest(steps: Steps) -> FedNest:
    return FedNest(
        1.0,
        NeumannSeries(steps.terms, steps.scale),
        upper_rate=steps.upper,
        lower_rate=steps.lower,
        lower_steps=LOCAL_STEPS,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
    )


def lfednest(steps: Steps) -> LFedNest:
    return LFedNest(
        1.0,
        NeumannSeries(steps.terms, steps.scale),
        upper_rate=steps.upper,
        lower_rate=steps.lower,
        lower_steps=LOCAL_STEPS,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
    )


def fedbio(steps: Steps) -> FedBiO:
    return FedBiO(
        1.0,
        steps.upper,
        steps.lower,
        steps.lower,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
    )


def fedbio_acc(steps: Steps) -> FedBiOAcc:
    return FedBiOAcc(
        1.0,
        steps.upper,
        steps.lower,
        steps.lower,
        upper_mixing=0.1,
        lower_mixing=0.1,
        adjoint_mixing=0.1,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
        opening_batch_size=4 * steps.batch_size,
    )


def simfbo(steps: Steps) -> SimFBO:
    # At a server rate of 1 it would be FedBiO: shorter local steps, a longer server's.
    return SimFBO(
        1.0,
        steps.upper / 3,
        steps.lower / 3,
        steps.lower / 3,
        server_rate=3.0,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
    )


def shrofbo(steps: Steps) -> ShroFBO:
    # Small devices make fewer local steps than large ones.
    return ShroFBO(
        1.0,
        steps.upper / 3,
        steps.lower / 3,
        steps.lower / 3,
        server_rate=3.0,
        local_steps=LOCAL_STEPS,
        batch_size=steps.batch_size,
        examples_per_step=steps.examples_per_step,
    )


CONTENDERS: dict[str, Callable[[Steps], FederatedAlgorithm]] = {
    "LocalBSGM": local_bsgm,
    "LocalBSGVRM": local_bsgvrm,
    "FedNest": fednest,
    "LFedNest": lfednest,
    "FedBiO": fedbio,
    "FedBiOAcc": fedbio_acc,
    "SimFBO": simfbo,
    "ShroFBO": shrofbo,
}


WITH_SERIES = ("LocalBSGM", "LocalBSGVRM", "FedNest", "LFedNest")
TERMS = (2, 8)


def grid(
    contender: str, task: Task, smallest: float, batch_size: int, headroom: float
) -> list[Steps]:
    """Return the settings to try, equally many for every contender.

    What a series is to the ones, the step of z is to the others: where there is a
    series, its length is tried, and elsewhere the shorter lower step.
    """
    curvature = headroom * largest_curvature(task)
    per_step = max(1, int(np.median(task.devices.lower_sizes)) // LOCAL_STEPS)
    series = contender in WITH_SERIES
    others = [(1.0, terms) for terms in TERMS] if series else [(0.3, 1), (1.0, 1)]
    return [
        Steps(
            upper * smallest,
            lower / curvature,
            terms,
            0.5 / curvature,
            batch_size,
            per_step,
        )
        for lower, terms in others
        for upper in UPPER_STEPS
    ]


def largest_curvature(task: Task, examples: int = 2_000) -> float:
    """Return the largest eigenvalue of ∇²yy g at the start, by power iteration."""
    arrays = task.devices.pooled.lower
    rows = np.random.default_rng(0).permutation(len(jax.tree.leaves(arrays)[0]))
    batch = jax.tree.map(lambda leaf: leaf[rows[:examples]], arrays)
    flat, unravel = ravel_pytree(task.y)

    @jax.jit
    def following(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = task.problem.hessian_product(task.x, task.y, batch, unravel(vector))
        flat_product = ravel_pytree(product)[0]
        size = jnp.linalg.norm(flat_product)
        return flat_product / size, size

    vector = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    vector = vector / jnp.linalg.norm(vector)
    for _ in range(50):
        vector, size = following(vector)
    return float(size)
