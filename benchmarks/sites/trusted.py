"""Models of the trusted examples, with a penalty by cross-validation."""

from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import fit, losses_of, network_of, trusted_of

FOLDS = 5
PENALTIES = tuple(float(p) for p in np.logspace(-3, 1, 9))
"""Values of μ of the last step, and of the ridge of the trusted examples alone."""


@lru_cache(maxsize=4)
def fold_weights(
    task: SitesTask,
) -> tuple[Float[Array, "f rows"], Float[Array, "f rows"]]:
    """Return weights of trusted examples for training and for the check of each fold.

    The last row of the first is that of all examples.
    """
    size = len(trusted_of(task).labels)
    fold = np.random.default_rng([task.seed, 3]).permutation(size) % FOLDS
    held = np.array([fold == f for f in range(FOLDS)], float)
    used = np.concatenate([1 - held, np.ones((1, size))])
    used, held = (m / m.sum(axis=1, keepdims=True) for m in (used, held))
    return jnp.asarray(used, jnp.float32), jnp.asarray(held, jnp.float32)


def fold_losses(task: SitesTask, y: Float[Array, "... f size"]) -> np.ndarray:
    """Return the mean loss on held-out folds, of models without one fold each."""
    rows = trusted_of(task)
    flat = y.reshape(-1, y.shape[-1])
    each = losses_of(network_of(task), flat, rows.features, rows.targets[None])
    each = each.reshape(*y.shape[:-1], -1)
    return np.asarray(jnp.sum(each * fold_weights(task)[1], axis=(-2, -1)) / FOLDS)


def trusted_fits(
    task: SitesTask, centres: Float[Array, "f size"] | None = None
) -> Float[Array, "penalties f size"]:
    """Return models of the trusted examples for every penalty and fold.

    Args:
        task: the task.
        centres: for every fold the point to which the penalty pulls, which is the
            start too; default: 0, and the usual start.
    """
    used = fold_weights(task)[0]
    folds, number = len(used), len(PENALTIES)
    points = None if centres is None else jnp.tile(centres, (number, 1))
    y = fit(
        task,
        trusted_of(task),
        jnp.tile(used, (number, 1)),
        start=points,
        centre=points,
        penalty=np.repeat(PENALTIES, folds),
    )
    return y.reshape(number, folds, -1)


class Tuned(NamedTuple):
    """Models fitted to the trusted examples, with the penalty of the best check.

    Attributes:
        y: models without one fold each; the last has all examples.
        penalty: the chosen penalty.
        loss: mean loss on held-out folds.
    """

    y: Float[Array, "f size"]
    penalty: float
    loss: float


def tune(task: SitesTask, centres: Float[Array, "f size"] | None = None) -> Tuned:
    """Return y ← argmin trusted loss + μ‖y − centre‖², with μ by cross-validation."""
    fits = trusted_fits(task, centres)
    losses = fold_losses(task, fits[:, :-1])
    best = int(np.argmin(losses))
    return Tuned(fits[best], PENALTIES[best], float(losses[best]))


def fine_tune(task: SitesTask, y: Float[Array, "size"]) -> Tuned:
    """Return a model fine-tuned on the trusted examples."""
    return tune(task, jnp.tile(y[None], (FOLDS + 1, 1)))


@lru_cache(maxsize=4)
def trusted_model(task: SitesTask) -> Tuned:
    """Return the models trained on the trusted examples alone."""
    return tune(task)
