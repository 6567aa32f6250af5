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
from benchmarks.sites.training import STEPS, Loss, chances, fit, rows_of, trusted_of
from benchmarks.sites.trusted import FOLDS, Tuned, fold_weights, trusted_model, tune

WARM_STEPS = 50
"""Exchanges of a training that starts at the last model."""
PRIOR = 1.0
"""Examples of each class that are counted as labelled rightly."""


class Pipeline(NamedTuple):
    """A setting of the correction.

    Attributes:
        posterior: whether an example's classes depend on its features too, as in
            Dawid and Skene's model; otherwise on its site and label only.
        balanced: whether classes are weighted by their trusted shares.
        rounds: number of trainings; each counts by the last model.
    """

    posterior: bool
    balanced: bool
    rounds: int

    def __str__(self) -> str:
        balance = "balanced" if self.balanced else "unbalanced"
        return f"{balance}, rounds={self.rounds}"


class Counts(NamedTuple):
    """Confusion matrices of all sites, for each fold.

    Attributes:
        joint: predicted class × label: sums of predicted chances.
    """

    joint: Float[Array, "f sites classes classes"]

    @property
    def by_label(self) -> Float[Array, "f sites classes classes"]:
        """Chance of a class given the label."""
        return self.joint / jnp.sum(self.joint, axis=2, keepdims=True)

    @property
    def by_class(self) -> Float[Array, "f sites classes classes"]:
        """Chance of a label given the class."""
        return self.joint / jnp.sum(self.joint, axis=3, keepdims=True)


@partial(jax.jit, static_argnames="sites")
def _count(sites: int, predicted: Array, labels: Array, site: Array) -> Counts:
    classes = predicted.shape[2]
    cell = site * classes + labels
    sums = jax.vmap(
        lambda p: jax.ops.segment_sum(p, cell, num_segments=sites * classes)
    )(predicted)
    joint = jnp.swapaxes(sums.reshape(-1, sites, classes, classes), 2, 3)
    prior = PRIOR * jnp.eye(classes, dtype=joint.dtype) + 0.01
    return Counts(joint + prior[None, None])


@partial(jax.jit, static_argnames=("posterior", "balanced"))
def _targets(
    posterior: bool,
    balanced: bool,
    counts: Counts,
    predicted: Array,
    labels: Array,
    site: Array,
    prior: Float[Array, "f classes"],
) -> Float[Array, "f rows classes"]:
    """Return soft labels, weighted by class if balanced."""
    if posterior:
        likelihood = jnp.swapaxes(counts.by_class, 2, 3)[:, site, labels]
        parts = predicted * likelihood
        soft = parts / jnp.sum(parts, axis=2, keepdims=True)
    else:
        soft = jnp.swapaxes(counts.by_label, 2, 3)[:, site, labels]
    if not balanced:
        return soft
    present = jnp.mean(soft, axis=1)
    return soft * (prior / (present + 1e-3))[:, None]


def _trusted_shares(task: SitesTask) -> Float[Array, "f classes"]:
    used, targets = fold_weights(task)[0], trusted_of(task).targets
    size = len(trusted_of(task).labels)
    counts = used @ targets * size + 1
    return counts / jnp.sum(counts, axis=1, keepdims=True)


def _run(task: SitesTask, setting: Pipeline) -> tuple[Array, Tuned, Counts]:
    """Return models of all folds, the fine-tuned ones, and the confusion matrices."""
    rows, folds = rows_of(task), FOLDS + 1
    labels, site = jnp.asarray(rows.labels), jnp.asarray(rows.site)
    equal = jnp.full((folds, len(labels)), 1 / len(labels), jnp.float32)
    y = trusted_model(task).y
    first = None
    for number in range(setting.rounds):
        predicted = chances(task, y, rows.features)
        counts = _count(len(task.sites), predicted, labels, site)
        first = first or counts
        targets = _targets(
            setting.posterior,
            setting.balanced,
            counts,
            predicted,
            labels,
            site,
            _trusted_shares(task),
        )
        steps = STEPS if number == 0 else WARM_STEPS
        start = None if number == 0 else y
        y = fit(task, rows, equal, targets=targets, start=start, steps=steps)
    return y, tune(task, y), counts


def _suspicion(counts: Counts) -> np.ndarray:
    """Return the share of labels that differ from the predicted class, by site."""
    joint = np.asarray(counts.joint[-1], float)
    return np.asarray(1 - np.trace(joint, axis1=1, axis2=2) / joint.sum(axis=(1, 2)))


def _correct(task: SitesTask, posterior: bool, rounds: tuple[int, ...]) -> Result:
    """Return the setting that is best by cross-validation after fine-tuning."""
    settings = [Pipeline(posterior, b, r) for b, r in product((False, True), rounds)]
    runs = [_run(task, setting) for setting in settings]
    best = int(np.argmin([tuned.loss for _, tuned, _ in runs]))
    y, tuned, counts = runs[best]
    each = sum(STEPS + WARM_STEPS * (s.rounds - 1) for s in settings)
    return finish(
        task,
        y[-1],
        scores=_suspicion(counts),
        exchanges=(FOLDS + 1) * each + exchanges_of_trusted(task),
        setting=f"{settings[best]}, μ={tuned.penalty:.2g}",
        tuned=tuned.y[-1],
    )


def counted_maps(task: SitesTask, seed: int) -> Result:
    """A label map by site: each label is read as the classes predicted for it."""
    return _correct(task, posterior=False, rounds=(1, 3))


def label_posterior(task: SitesTask, seed: int) -> Result:
    """Dawid and Skene with features: classes given label, site and features, by EM."""
    return _correct(task, posterior=True, rounds=(1, 3, 10))


def forward_correction(task: SitesTask, seed: int) -> Result:
    """GLC (Hendrycks et al., 2018) with a matrix a site, counted by the trusted model.

    The loss is −log of the chance of the site's label, Σ_c p_c(y) T_k[c, t].
    """
    rows, folds = rows_of(task), FOLDS + 1
    labels, site = jnp.asarray(rows.labels), jnp.asarray(rows.site)
    equal = jnp.full((folds, len(labels)), 1 / len(labels), jnp.float32)
    predicted = chances(task, trusted_model(task).y, rows.features)
    counts = _count(len(task.sites), predicted, labels, site)
    likelihood = jnp.swapaxes(counts.by_class, 2, 3)[:, site, labels]
    starts = {
        "from the trusted model": trusted_model(task).y,
        "from FedAvg": jnp.tile(average(task)[None], (folds, 1)),
    }
    loss: Loss = "forward"
    runs = []
    for start in starts.values():
        y = fit(task, rows, equal, targets=likelihood, start=start, loss=loss)
        runs.append((y, tune(task, y)))
    best = int(np.argmin([tuned.loss for _, tuned in runs]))
    y, tuned = runs[best]
    return finish(
        task,
        y[-1],
        scores=_suspicion(counts),
        exchanges=STEPS * (1 + folds * len(runs)) + exchanges_of_trusted(task),
        setting=f"{list(starts)[best]}, μ={tuned.penalty:.2g}",
        tuned=tuned.y[-1],
    )
