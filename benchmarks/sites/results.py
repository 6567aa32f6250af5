"""The result of a contender: test metrics, scores of the sites and exchanges."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.sites.tasks import SitesTask
from benchmarks.sites.training import STEPS, chances
from benchmarks.sites.trusted import fine_tune

Contender: TypeAlias = Callable[[SitesTask, int], "Result | None"]


class Result(NamedTuple):
    """The measurements of a contender; None for what it does not have.

    Attributes:
        accuracy: accuracy on the test examples.
        log_loss: loss on the test examples.
        tuned_accuracy: accuracy after fine-tuning on the trusted examples.
        tuned_log_loss: loss after fine-tuning on the trusted examples.
        scores: a number for each site, higher for more suspicious sites.
        exchanges: exchanges before fine-tuning.
        tuned_exchanges: exchanges with fine-tuning.
        setting: the setting chosen by the trusted examples.
    """

    accuracy: float
    log_loss: float
    tuned_accuracy: float | None
    tuned_log_loss: float | None
    scores: list[float] | None
    exchanges: int
    tuned_exchanges: int
    setting: str


def finish(
    task: SitesTask,
    y: Float[Array, "size"],
    *,
    scores: Any = None,
    exchanges: int,
    setting: str = "",
    tuned: Float[Array, "size"] | None = None,
    tunes: bool = True,
) -> Result:
    """Return the result of a model, as it is and fine-tuned.

    Args:
        task: the task.
        y: the model.
        scores: scores of the sites.
        exchanges: number of exchanges.
        setting: the chosen setting.
        tuned: the fine-tuned model, if the contender has one.
        tunes: whether the model is fine-tuned.
    """
    if tunes and tuned is None:
        choice = fine_tune(task, y)
        tuned, setting = choice.y[-1], f"{setting} μ={choice.penalty:.2g}".strip()
    accuracy, loss = metrics_on_test(task, y)
    after = None if tuned is None else metrics_on_test(task, tuned)
    listed = None if scores is None else [float(s) for s in scores]
    total = exchanges + (exchanges_of_trusted(task) if tuned is not None else 0)
    return Result(
        accuracy,
        loss,
        after and after[0],
        after and after[1],
        listed,
        exchanges,
        total,
        setting,
    )


def exchanges_of_trusted(task: SitesTask) -> int:
    """Return the exchanges of one training on the trusted examples.

    None at the server, one at a single site, as many as steps at several sites.
    """
    return {0: 0, 1: 1}.get(len(task.holders), STEPS)


def metrics_on_test(task: SitesTask, y: Float[Array, "size"]) -> tuple[float, float]:
    """Return accuracy and loss on the test examples."""
    logs = jnp.log(chances(task, y[None], jnp.asarray(task.test.features))[0] + 1e-30)
    labels = task.test.labels
    values = np.asarray(logs)
    right = float(np.mean(values.argmax(axis=1) == labels))
    return right, float(-np.mean(values[np.arange(len(labels)), labels]))
