"""Contenders that correct the sites' labels by a model of the trusted examples.

The trusted model predicts the classes of every site's examples. Its predictions and the
site's labels, counted together, are the site's confusion matrix, which each site
computes itself. Every setting is checked by cross-validation of the whole pipeline:
five models lack one fold of the trusted examples each, the sixth has all.
"""

from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.averages import average
from benchmarks.sites.results import Result, exchanges_of_trusted, finish
from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import STEPS, chances, fit, rows_of, trusted_of
from benchmarks.sites.trusted import (
    FOLDS,
    Tuned,
    fine_tune,
    fold_weights,
    trusted_model,
    tune,
)

WARM_STEPS = 30
"""Exchanges of a training that starts at the last model."""
ESTIMATES = 20
"""Iterations of EM for the confusion matrices, at the sites."""


class Pipeline(NamedTuple):
    """A setting of the correction.

    Attributes:
        posterior: whether an example's classes depend on its features too, as in
            Dawid and Skene's model; otherwise on its site and label only.
        prior: number of examples of each class that count as labelled rightly.
        balanced: whether classes are weighted by their trusted shares.
    """

    posterior: bool
    prior: float
    balanced: bool


class Corrected(NamedTuple):
    """Models of a pipeline after some rounds.

    Attributes:
        y: models without one fold of the trusted examples each; the last has all.
        tuned: the fine-tuned models.
        joint: confusion matrices of all sites, class × label.
        setting: description of the setting.
        exchanges: exchanges until then.
    """

    y: Float[Array, "f size"]
    tuned: Tuned
    joint: Float[Array, "f sites classes classes"]
    setting: str
    exchanges: int


@partial(jax.jit, static_argnames=("sites", "estimates"))
def _classes(
    sites: int,
    estimates: int,
    predicted: Array,
    labels: Array,
    site: Array,
    shares: Float[Array, "f classes"],
    prior: Array,
) -> tuple[Array, Array, Array]:
    """Return confusion matrices, and the classes of all rows by two rules.

    The trusted model's mistakes would count as those of the site. So the shares of the
    classes among a site's examples of a label are estimated by EM, with the prediction
    divided by the class's share as likelihood (Saerens et al., 2002).

    Returns:
        The confusion matrices, class × label; chances of classes given site and label;
        chances of classes given site, label and features.
    """
    classes = predicted.shape[2]
    cell = site * classes + labels
    identity = jnp.tile(jnp.eye(classes, dtype=predicted.dtype), (sites, 1))
    pseudo = (prior * identity + 0.01)[None]
    ratio = predicted / shares[:, None]

    def count(soft: Array) -> Array:
        cells = sites * classes
        total = partial(jax.ops.segment_sum, segment_ids=cell, num_segments=cells)
        return jax.vmap(total)(soft) + pseudo

    def normalise(soft: Array) -> Array:
        return soft / jnp.sum(soft, axis=2, keepdims=True)

    def estimate(_: int, sums: Array) -> Array:
        return count(normalise(ratio * normalise(sums)[:, cell]))

    sums = jax.lax.fori_loop(0, estimates, estimate, count(predicted))
    maps = normalise(sums)[:, cell]
    joint = jnp.swapaxes(sums.reshape(-1, sites, classes, classes), 2, 3)
    return joint, maps, normalise(ratio * maps)


def _estimate(
    task: SitesTask, y: Array, prior: float, estimates: int = ESTIMATES
) -> tuple[Array, Array, Array]:
    rows = rows_of(task)
    result: tuple[Array, Array, Array] = _classes(
        len(task.sites),
        estimates,
        chances(task, y, rows.features),
        jnp.asarray(rows.labels),
        jnp.asarray(rows.site),
        _trusted_shares(task)[-len(y) :],
        jnp.float32(prior),
    )
    return result


def _trusted_shares(task: SitesTask) -> Float[Array, "f classes"]:
    used, targets = fold_weights(task)[0], trusted_of(task).targets
    counts = used @ targets * len(targets) + 1
    return counts / jnp.sum(counts, axis=1, keepdims=True)


def _run(
    task: SitesTask, setting: Pipeline, rounds: tuple[int, ...], checks: bool = True
) -> list[Corrected]:
    """Return the models after some numbers of rounds of correction and training.

    Args:
        task: the task.
        setting: setting of the correction.
        rounds: numbers of rounds after which models are returned.
        checks: whether models without one fold each are trained too, which makes the
            choice of the setting honest, at six times the exchanges.
    """
    rows, models = rows_of(task), FOLDS + 1 if checks else 1
    equal = jnp.full((models, len(rows.labels)), 1 / len(rows.labels), jnp.float32)
    better = trusted_model(task).y[-models:]
    y, results, exchanges = None, [], 0
    for number in range(1, max(rounds) + 1):
        joint, maps, posterior = _estimate(task, better, setting.prior)
        targets = posterior if setting.posterior else maps
        if setting.balanced:
            present = jnp.mean(targets, axis=1) + 1e-3
            shares = _trusted_shares(task)[-models:]
            targets = targets * (shares / present)[:, None]
        steps = STEPS if y is None else WARM_STEPS
        y = fit(task, rows, equal, targets=targets, start=y, steps=steps)
        tuned = tune(task, y) if checks else fine_tune(task, y[0])
        better = tuned.y[-models:]
        exchanges += models * (steps + exchanges_of_trusted(task))
        if number in rounds:
            name = f"prior={setting.prior:g} rounds={number} μ={tuned.penalty:.2g}"
            name += " balanced" if setting.balanced else ""
            results.append(Corrected(y, tuned, joint, name, exchanges))
    return results


def _suspicion(joint: Array) -> np.ndarray:
    """Return the share of labels that differ from the estimated class, by site."""
    last = np.asarray(joint[-1], float)
    return np.asarray(1 - np.trace(last, axis1=1, axis2=2) / last.sum(axis=(1, 2)))


def _correct(
    task: SitesTask, settings: list[Pipeline], rounds: tuple[int, ...]
) -> Result:
    """Return the setting that is best by cross-validation after fine-tuning."""
    runs = [_run(task, setting, rounds) for setting in settings]
    best = min((c for run in runs for c in run), key=lambda c: c.tuned.loss)
    return finish(
        task,
        best.y[-1],
        scores=_suspicion(best.joint),
        exchanges=sum(run[-1].exchanges for run in runs),
        setting=best.setting,
        tuned=best.tuned.y[-1],
    )


def label_maps(task: SitesTask, seed: int) -> Result:
    """A label map by site: each label is read as the classes estimated for it."""
    settings = [Pipeline(False, prior, False) for prior in (3.0, 30.0)]
    return _correct(task, settings, rounds=(1, 3))


def label_posterior(task: SitesTask, seed: int) -> Result:
    """Dawid and Skene with features: classes given site, label and features, by EM."""
    options = product((10.0, 30.0), (False, True))
    settings = [Pipeline(True, prior, balanced) for prior, balanced in options]
    return _correct(task, settings, rounds=(1, 3, 6))


def plain_posterior(task: SitesTask, seed: int) -> Result:
    """The label posterior with one setting for all tasks, and no checks of others."""
    (last,) = _run(task, Pipeline(True, 30.0, True), (6,), checks=False)
    return finish(
        task,
        last.y[-1],
        scores=_suspicion(last.joint),
        exchanges=last.exchanges,
        setting=last.setting,
        tuned=last.tuned.y[-1],
    )


def forward_correction(task: SitesTask, seed: int) -> Result:
    """GLC (Hendrycks et al., 2018) with a matrix a site, counted by the trusted model.

    The loss is −log of the chance of the site's label, Σ_c p_c(y) T_k[c, t].
    """
    rows, folds = rows_of(task), FOLDS + 1
    equal = jnp.full((folds, len(rows.labels)), 1 / len(rows.labels), jnp.float32)
    starts = {
        "from the trusted model": trusted_model(task).y,
        "from FedAvg": jnp.tile(average(task)[None], (folds, 1)),
    }
    runs = []
    for (name, start), estimates in product(starts.items(), (0, ESTIMATES)):
        joint, _, _ = _estimate(task, trusted_model(task).y, 10.0, estimates)
        by_class = joint / jnp.sum(joint, axis=3, keepdims=True)
        likelihood = jnp.swapaxes(by_class, 2, 3)[:, rows.site, rows.labels]
        y = fit(task, rows, equal, targets=likelihood, start=start, loss="forward")
        tuned = tune(task, y)
        setting = f"{name}, EM={estimates}, μ={tuned.penalty:.2g}"
        runs.append(Corrected(y, tuned, joint, setting, STEPS * folds))
    best = min(runs, key=lambda c: c.tuned.loss)
    trusted = exchanges_of_trusted(task) * (1 + folds * len(runs))
    return finish(
        task,
        best.y[-1],
        scores=_suspicion(best.joint),
        exchanges=STEPS + STEPS * folds * len(runs) + trusted,
        setting=best.setting,
        tuned=best.tuned.y[-1],
    )
