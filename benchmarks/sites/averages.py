"""Contenders without a choice of sites: FedAvg, robust means, fair losses, bounds."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.results import Result, finish
from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import (
    RIDGE,
    STEPS,
    Network,
    State,
    advance,
    curvature,
    example_weights,
    initial,
    losses_of,
    network_of,
    rows_of,
    sizes_of,
    train,
    trusted_losses,
    trusted_of,
)
from benchmarks.sites.trusted import trusted_model
from fedbilevel.transforms.robust_means import GeometricMedian, TrimmedMean

Gradients = Float[Array, "sites size"]


@lru_cache(maxsize=4)
def average(task: SitesTask) -> Float[Array, "size"]:
    """Return the model of FedAvg by size."""
    return train(task, sizes_of(task)[None])[0]


def fedavg(task: SitesTask, seed: int) -> Result:
    """FedAvg with weights by size."""
    return finish(task, average(task), exchanges=STEPS)


def oracle(task: SitesTask, seed: int) -> Result:
    """FedAvg over the good sites, which a practitioner does not know."""
    y = train(task, (sizes_of(task) * ~task.bad)[None])[0]
    return finish(task, y, scores=task.bad, exchanges=STEPS)


def trusted_alone(task: SitesTask, seed: int) -> Result:
    """Training on the trusted examples only, with a ridge by cross-validation."""
    choice = trusted_model(task)
    setting = f"ridge={choice.penalty:.2g}"
    return finish(task, choice.y[-1], exchanges=0, setting=setting, tunes=False)


def trusted_sites(task: SitesTask, seed: int) -> Result | None:
    """FedAvg over the sites that have trusted examples."""
    if not task.holders:
        return None
    chosen = np.isin(np.arange(len(task.sites)), task.holders)
    y = train(task, (sizes_of(task) * chosen)[None])[0]
    return finish(task, y, exchanges=STEPS)


Rule = Callable[[Any, Gradients, Float[Array, "size"]], tuple[Array, Array]]
"""From a setting, the sites' gradients and the trusted one: a mean, and scores."""


@partial(jax.jit, static_argnames=("network", "rule", "steps"))
def _aggregate(
    network: Network,
    rule: Rule,
    steps: int,
    setting: Any,
    features: Array,
    targets: Array,
    each: Array,
    trusted: tuple[Array, Array],
    start: Array,
) -> tuple[Array, Array]:
    """Return the model after steps along a mean of gradients, and the last scores."""
    penalty = jnp.full(len(each), RIDGE, jnp.float32)
    # The mean may be the gradient of any site.
    bound = jnp.max(curvature(network, features, each, penalty))[None]

    def step(state: State, number: Array) -> tuple[State, Array]:
        def value(y: Array, weights: Array) -> Array:
            losses = losses_of(network, y[None], features, targets[None])[0]
            mean: Array = weights @ losses
            return mean

        y = state.ahead[0]
        gradients = jax.vmap(jax.grad(value), (None, 0))(y, each)
        reference = jax.grad(
            lambda y: jnp.mean(
                losses_of(network, y[None], trusted[0], trusted[1][None])
            )
        )(y)
        mean, scores = rule(setting, gradients, reference)
        gradient = (mean + 2 * RIDGE * y)[None]
        return advance(network, state, gradient, bound, number), scores

    numbers = jnp.arange(steps, dtype=jnp.float32) / steps
    state, scores = jax.lax.scan(step, initial(network, start[None]), numbers)
    return state.y[0], jnp.mean(scores, axis=0)


def _aggregated(task: SitesTask, rule: Rule, settings: dict[str, Any]) -> Result:
    """Return the result of the setting with the smallest trusted loss."""
    rows, trusted, network = rows_of(task), trusted_of(task), network_of(task)
    runs = [
        _aggregate(
            network,
            rule,
            STEPS,
            setting,
            rows.features,
            rows.targets,
            example_weights(task, np.eye(len(task.sites))),
            (trusted.features, trusted.targets),
            network.start(task.seed),
        )
        for setting in settings.values()
    ]
    losses = trusted_losses(task, jnp.stack([y for y, _ in runs]))
    # A model that diverged is the worst.
    best = int(np.argmin(np.nan_to_num(losses, nan=np.inf)))
    y, scores = runs[best]
    total = STEPS * len(runs)
    return finish(task, y, scores=scores, exchanges=total, setting=list(settings)[best])


def _distances(gradients: Gradients, mean: Array) -> Array:
    lengths: Array = jnp.linalg.norm(gradients - mean[None], axis=1)
    return lengths


def _trim(setting: Any, gradients: Gradients, reference: Array) -> tuple[Array, Array]:
    weights, share = setting
    (mean,) = TrimmedMean(share)((gradients,), weights, (reference,))
    return mean, _distances(gradients, mean)


def _weiszfeld(
    weights: Any, gradients: Gradients, reference: Array
) -> tuple[Array, Array]:
    (mean,) = GeometricMedian()((gradients,), weights, (reference,))
    return mean, _distances(gradients, mean)


def _krum(bad: Any, gradients: Gradients, reference: Array) -> tuple[Array, Array]:
    squares = jnp.sum((gradients[:, None] - gradients[None]) ** 2, axis=2)
    count = len(gradients)
    near = jnp.arange(count) < count - bad - 1
    scores = jnp.sum(jnp.where(near[None], jnp.sort(squares, axis=1), 0), axis=1)
    rank = jnp.argsort(jnp.argsort(scores))
    chosen = (rank < count - bad).astype(gradients.dtype)
    return chosen @ gradients / jnp.sum(chosen), scores


def _trust(_: Any, gradients: Gradients, reference: Array) -> tuple[Array, Array]:
    length = jnp.linalg.norm(reference) + 1e-12
    lengths = jnp.linalg.norm(gradients, axis=1) + 1e-12
    cosines = gradients @ reference / (lengths * length)
    trust = jnp.maximum(cosines, 0)
    mean = (trust * length / lengths) @ gradients / (jnp.sum(trust) + 1e-12)
    return mean, -cosines


def _weightings(task: SitesTask) -> dict[str, Array]:
    sizes = jnp.asarray(sizes_of(task), jnp.float32)
    return {"by size": sizes, "equal": jnp.ones_like(sizes)}


def coordinate_median(task: SitesTask, seed: int) -> Result:
    """Trimmed mean or median of each coordinate of the sites' gradients."""
    shares = 0.2, 0.49
    return _aggregated(
        task,
        _trim,
        {
            f"{name}, share {share}": (weights, jnp.float32(share))
            for name, weights in _weightings(task).items()
            for share in shares
        },
    )


def geometric_median(task: SitesTask, seed: int) -> Result:
    """Geometric median of the sites' gradients."""
    return _aggregated(task, _weiszfeld, _weightings(task))


def multi_krum(task: SitesTask, seed: int) -> Result:
    """Mean of the gradients nearest to the others (Blanchard et al., 2017)."""
    count = len(task.sites)
    numbers = sorted({max(1, count // 5), max(1, count // 2 - 2)})
    return _aggregated(task, _krum, {f"bad={n}": jnp.int32(n) for n in numbers})


def fltrust(task: SitesTask, seed: int) -> Result:
    """Gradients weighted by their cosine with the trusted one (Cao et al., 2021)."""
    return _aggregated(task, _trust, {"": jnp.int32(0)})


Reweighting = Callable[[Array, Array, Array, Array], Array]
"""From rates, last weights, losses of the sites and their shares: new weights."""


@partial(jax.jit, static_argnames=("network", "reweight", "steps"))
def _reweighted(
    network: Network,
    reweight: Reweighting,
    steps: int,
    rates: Array,
    shares: Array,
    features: Array,
    targets: Array,
    each: Array,
    start: Array,
) -> tuple[Array, Array]:
    """Return models whose sites get new weights in every step, and the weights."""
    count = len(rates)
    penalty = jnp.full(len(each), RIDGE, jnp.float32)
    bound = jnp.broadcast_to(
        jnp.max(curvature(network, features, each, penalty)), (count,)
    )

    def step(carry: tuple[State, Array], number: Array) -> tuple[Any, None]:
        state, weights = carry

        def value(y: Array) -> tuple[Array, Array]:
            losses = losses_of(network, y, features, targets[None])
            by_site = losses @ each.T
            new = jax.lax.stop_gradient(reweight(rates, weights, by_site, shares))
            return jnp.sum(new * by_site) + RIDGE * jnp.sum(y**2), new

        gradient, new = jax.grad(value, has_aux=True)(state.ahead)
        return (advance(network, state, gradient, bound, number), new), None

    numbers = jnp.arange(steps, dtype=jnp.float32) / steps
    first = initial(network, jnp.tile(start[None], (count, 1)))
    weights = jnp.tile(shares[None], (count, 1))
    (state, weights), _ = jax.lax.scan(step, (first, weights), numbers)
    return state.y, weights


def _fair(task: SitesTask, reweight: Reweighting, rates: list[float]) -> Result:
    rows, network = rows_of(task), network_of(task)
    sizes = sizes_of(task)
    models, _ = _reweighted(
        network,
        reweight,
        STEPS,
        jnp.asarray(rates, jnp.float32),
        jnp.asarray(sizes / sizes.sum(), jnp.float32),
        rows.features,
        rows.targets,
        example_weights(task, np.eye(len(task.sites))),
        network.start(task.seed),
    )
    losses = np.nan_to_num(trusted_losses(task, models), nan=np.inf)
    best = int(np.argmin(losses))
    total = STEPS * len(rates)
    return finish(task, models[best], exchanges=total, setting=f"{rates[best]}")


def _ascend(rates: Array, weights: Array, losses: Array, shares: Array) -> Array:
    return jax.nn.softmax(jnp.log(weights) + rates[:, None] * losses, axis=1)


def _power(rates: Array, weights: Array, losses: Array, shares: Array) -> Array:
    powers = jnp.log(shares)[None] + rates[:, None] * jnp.log(losses + 1e-6)
    return jax.nn.softmax(powers, axis=1)


def afl(task: SitesTask, seed: int) -> Result:
    """Minimum of the largest loss of a mixture of sites (Mohri et al., 2019)."""
    return _fair(task, _ascend, [0.01, 0.03, 0.1])


def qffl(task: SitesTask, seed: int) -> Result:
    """Losses to the power q + 1 (Li et al., 2020)."""
    return _fair(task, _power, [0.1, 1.0, 5.0])
