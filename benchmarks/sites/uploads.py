"""Contenders that weight the sites' uploaded models: FedCE and FedLAW."""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from benchmarks.sites.results import Result, finish
from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import (
    RIDGE,
    STEPS,
    Network,
    curvature,
    example_weights,
    fit,
    losses_of,
    network_of,
    rows_of,
    site_losses,
    sizes_of,
    trusted_losses,
    trusted_of,
)

LOCAL_STEPS = 5
ROUNDS = 30
"""Exchanges of a contender of this module."""
RATE = 0.1
"""Adam's rate of the logits of FedLAW's weights."""


def _uploads(task: SitesTask, y: Float[Array, "size"]) -> Float[Array, "sites size"]:
    """Return the models of all sites after local steps from a common model."""
    start = jnp.tile(y[None], (len(task.sites), 1))
    weights, bound = _alone(task)
    return fit(
        task, rows_of(task), weights, start=start, steps=LOCAL_STEPS, bound=bound
    )


@lru_cache(maxsize=4)
def _alone(task: SitesTask) -> tuple[Array, Array]:
    """Return weights of the examples and the curvature of every site alone."""
    count = len(task.sites)
    weights = example_weights(task, np.eye(count))
    penalty = jnp.full(count, RIDGE, jnp.float32)
    features = rows_of(task).features
    return weights, curvature(network_of(task), features, weights, penalty)


def fedce(task: SitesTask, seed: int) -> Result:
    """FedCE (Jiang et al., 2023): contributions by leaving out each site's update.

    A site's contribution is the product of 1 − the cosine between its update and that
    of the other sites, and the loss on its examples of the model without its update. It
    raises the weights of unusual sites, which FedCE takes for fairness.
    """
    count = len(task.sites)
    weights = sizes_of(task) / sizes_of(task).sum()
    first = weights
    total = np.zeros(count)
    y = network_of(task).start(task.seed)
    for _ in range(ROUNDS):
        updates = np.asarray(_uploads(task, y) - y[None], float)
        mean = weights @ updates
        others = (mean[None] - weights[:, None] * updates) / (1 - weights)[:, None]
        lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(others, axis=1)
        cosines = np.sum(updates * others, axis=1) / (lengths + 1e-12)
        left = jnp.asarray(others, jnp.float32) + y[None]
        errors = np.diag(site_losses(task, left))
        # The sum over rounds steadies the weights, as in the published program.
        parts = (1 - cosines + 1e-3) * errors
        total += parts / parts.sum()
        y = y + jnp.asarray(mean, jnp.float32)
        weights = 0.5 * first + 0.5 * total / total.sum()
        weights = weights / weights.sum()
    return finish(task, y, scores=total, exchanges=2 * ROUNDS)


@partial(jax.jit, static_argnames=("network", "steps"))
def _learn_weights(
    network: Network,
    steps: int,
    shrinks: Array,
    features: Array,
    targets: Array,
    models: Array,
    start: Array,
) -> tuple[Array, Array]:
    """Return γ and the logits of weights that minimise the trusted loss, by Adam."""

    def value(point: tuple[Array, Array]) -> Array:
        y = _merge(point, models)
        return jnp.mean(losses_of(network, y[None], features, targets[None]))

    adam = optax.scale_by_adam(b1=0.9, b2=0.99)

    def step(carry: tuple[Any, Any], _: Any) -> tuple[tuple[Any, Any], None]:
        (gamma, logits), moments = carry
        slopes = jax.grad(value)((gamma, logits))
        (first, second), moments = adam.update(slopes, moments)
        return ((gamma - shrinks * first, logits - RATE * second), moments), None

    point = jnp.ones((), jnp.float32), start
    (point, _), _ = jax.lax.scan(step, (point, adam.init(point)), length=steps)
    return point


def _merge(point: tuple[Array, Array], models: Array) -> Array:
    gamma, logits = point
    merged: Array = gamma * (jax.nn.softmax(logits) @ models)
    return merged


def fedlaw(task: SitesTask, seed: int) -> Result:
    """FedLAW (Li et al., 2023): γ and weights of uploads, learned on trusted examples.

    The setting is the rate of γ; at 0 the weights are learned alone.
    """
    trusted, network = trusted_of(task), network_of(task)
    runs = []
    settings = 0.0, 0.01
    for shrinks in settings:
        y = network.start(task.seed)
        logits = jnp.asarray(np.log(sizes_of(task)), jnp.float32)
        for _ in range(ROUNDS):
            models = _uploads(task, y)
            gamma, logits = _learn_weights(
                network,
                STEPS,
                jnp.float32(shrinks),
                trusted.features,
                trusted.targets,
                models,
                logits,
            )
            y = _merge((gamma, logits), models)
        runs.append((y, -logits))
    best = int(np.argmin(trusted_losses(task, jnp.stack([y for y, _ in runs]))))
    y, scores = runs[best]
    return finish(
        task,
        y,
        scores=scores,
        exchanges=ROUNDS * len(runs),
        setting=f"rate of γ={settings[best]:g}",
    )
