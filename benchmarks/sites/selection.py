"""Contenders that choose or weight sites by losses on the trusted examples."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.averages import average
from benchmarks.sites.results import Result, exchanges_of_trusted, finish
from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import (
    STEPS,
    example_weights,
    fit,
    rows_of,
    site_losses,
    sizes_of,
    train,
    trusted_losses,
    trusted_of,
)
from benchmarks.sites.trusted import Tuned, fine_tune, trusted_model

EXPONENTS = 1.0, 3.0, 10.0, 30.0, 100.0
"""Values of τ."""
WARM_STEPS = 30
"""Exchanges of a training that starts at the solution for other weights."""


@lru_cache(maxsize=4)
def own_models(task: SitesTask) -> Float[Array, "sites size"]:
    """Return the model that every site trains alone: one upload."""
    return train(task, np.eye(len(task.sites)))


@lru_cache(maxsize=4)
def own_losses(task: SitesTask) -> Float[np.ndarray, "sites"]:
    """Return the trusted loss of every site's own model."""
    return trusted_losses(task, own_models(task))


@lru_cache(maxsize=4)
def trust_losses(task: SitesTask) -> Float[np.ndarray, "sites"]:
    """Return the loss of the trusted model on every site's examples."""
    return np.asarray(site_losses(task, trusted_model(task).y[-1:])[0])


def _counts(task: SitesTask) -> list[int]:
    """Return at most 11 numbers of sites."""
    count = len(task.sites)
    return sorted({round(m) for m in np.linspace(1, count, min(count, 11))})


def _best_of(task: SitesTask, scores: np.ndarray) -> np.ndarray:
    """Return weights by size of the best m sites, for several m."""
    rank = np.argsort(np.argsort(scores, kind="stable"))
    return np.stack([sizes_of(task) * (rank < m) for m in _counts(task)])


def _exponential(task: SitesTask, scores: np.ndarray) -> np.ndarray:
    powers = -np.asarray(EXPONENTS)[:, None] * (scores - scores.min())[None]
    return np.asarray(sizes_of(task) * np.exp(powers))


def _chosen(
    task: SitesTask,
    weights: np.ndarray,
    names: list[str],
    scores: np.ndarray,
    extra: int,
) -> Result:
    """Return the result of the weighting with the smallest trusted loss."""
    models = train(task, weights)
    best = int(np.argmin(trusted_losses(task, models)))
    total = STEPS * len(weights) + extra
    return finish(
        task, models[best], scores=scores, exchanges=total, setting=names[best]
    )


def own_loss_weights(task: SitesTask, seed: int) -> Result:
    """Weights exp(−τ · trusted loss of the site's own model)."""
    scores = own_losses(task)
    names = [f"τ={t:g}" for t in EXPONENTS]
    return _chosen(task, _exponential(task, scores), names, scores, 1)


def best_by_own_loss(task: SitesTask, seed: int) -> Result:
    """The best m sites by the trusted loss of their own models."""
    scores = own_losses(task)
    names = [f"m={m}" for m in _counts(task)]
    return _chosen(task, _best_of(task, scores), names, scores, 1)


def leave_one_out(task: SitesTask, seed: int) -> Result:
    """Weights exp(τ · growth of the trusted loss without the site)."""
    count = len(task.sites)
    without = sizes_of(task) * (1 - np.eye(count))
    start = jnp.tile(average(task)[None], (count, 1))
    models = train(task, without, start=start, steps=WARM_STEPS)
    growth = trusted_losses(task, models) - trusted_losses(task, average(task)[None])
    scores = -growth / np.std(growth)
    names = [f"τ={t:g}" for t in EXPONENTS]
    extra = STEPS + count * WARM_STEPS
    return _chosen(task, _exponential(task, scores), names, scores, extra)


def greedy(task: SitesTask, seed: int) -> Result:
    """Forward selection: add the site that lowers the trusted loss the most."""
    count, sizes = len(task.sites), sizes_of(task)
    chosen = np.zeros(count, bool)
    last, exchanges = np.inf, 0
    order = np.full(count, float(count))
    y = models = own_models(task)
    while not chosen.all():
        candidates = np.eye(count, dtype=bool) | chosen[None]
        if chosen.any():
            start = jnp.tile(y[None], (count, 1))
            models = train(task, sizes * candidates, start=start, steps=WARM_STEPS)
        # A first choice needs one upload of every site's own model.
        exchanges += WARM_STEPS * int(np.sum(~chosen)) if chosen.any() else 1
        losses = np.where(chosen, np.inf, trusted_losses(task, models))
        best = int(np.argmin(losses))
        if losses[best] >= last:
            break
        order[best] = chosen.sum()
        chosen[best], last, y = True, losses[best], models[best]
    final = train(task, (sizes * chosen)[None])[0]
    setting = f"m={int(chosen.sum())}"
    return finish(
        task, final, scores=order, exchanges=exchanges + STEPS, setting=setting
    )


def _balanced(task: SitesTask, weights: np.ndarray) -> Array:
    """Return weights of examples whose classes have their trusted shares."""
    each = example_weights(task, weights)
    targets = rows_of(task).targets
    wanted = np.bincount(trusted_of(task).labels, minlength=task.classes) + 1.0
    factors = jnp.asarray(wanted / wanted.sum(), jnp.float32) / (each @ targets + 1e-3)
    balanced = each * (factors @ targets.T)
    return balanced / jnp.sum(balanced, axis=1, keepdims=True)


def _tuned_choice(
    task: SitesTask, weights: np.ndarray, names: list[str], balanced: bool = False
) -> Result:
    """Return the weighting whose fine-tuned model is best by cross-validation."""
    each = _balanced(task, weights) if balanced else example_weights(task, weights)
    models = fit(task, rows_of(task), each)
    choices: list[Tuned] = [fine_tune(task, y) for y in models]
    best = int(np.argmin([choice.loss for choice in choices]))
    first = int(np.argmin(trusted_losses(task, models)))
    setting = f"{names[best]} μ={choices[best].penalty:.2g} ({names[first]} before)"
    return finish(
        task,
        models[first],
        scores=trust_losses(task),
        exchanges=STEPS * len(weights) + 1 + exchanges_of_trusted(task),
        setting=setting,
        tuned=choices[best].y[-1],
    )


def best_by_trusted_model(task: SitesTask, seed: int) -> Result:
    """The best m sites by the trusted model's loss on their examples."""
    names = [f"m={m}" for m in _counts(task)]
    return _tuned_choice(task, _best_of(task, trust_losses(task)), names)


def best_balanced(task: SitesTask, seed: int) -> Result:
    """The best m sites by the trusted model's loss, with classes weighted equally."""
    names = [f"m={m}" for m in _counts(task)]
    weights = _best_of(task, trust_losses(task))
    return _tuned_choice(task, weights, names, balanced=True)


def trusted_model_weights(task: SitesTask, seed: int) -> Result:
    """Weights exp(−τ · loss of the trusted model on the site's examples)."""
    names = [f"τ={t:g}" for t in EXPONENTS]
    return _tuned_choice(task, _exponential(task, trust_losses(task)), names)
