"""The metrics that runs can measure: the library's, plug-ins, and `module:METRIC`.

A plug-in is an installed package with entry points, such as

    [project.entry-points."fedbilevel.metrics"]
    sharpness = "my_package.sharpness:SHARPNESS"
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedbilevel.mathematics.settings import SettingError
from fedbilevel.metrics.losses import LOSS, TRAINING_LOSS
from fedbilevel.metrics.metric import Metric
from fedbilevel.metrics.stationarity import HYPERGRADIENT, LOWER_ERROR
from fedbilevel.nearest import nearest
from fedbilevel.plugins import import_object, with_plugins

BUILT_IN = (LOSS, TRAINING_LOSS, HYPERGRADIENT, LOWER_ERROR)
ALWAYS = tuple(metric for metric in BUILT_IN if not metric.is_slow)
"""Metrics of every run. Another package must not change or end a run that does not
name its metrics, so none of them is here."""
TITLES = {"detection": "corrupted labels detected (AUC)"}
"""Titles of metrics of tasks that differ from their names."""


@cache
def list_metrics() -> Mapping[str, Metric]:
    """Return the metrics of the library and of plug-ins, by name.

    A plug-in that cannot be used is omitted with a warning.

    Example:
        >>> list(list_metrics())[:2]
        ['loss', 'training_loss']
    """
    built_in = {metric.name: metric for metric in BUILT_IN}
    metrics = with_plugins(built_in, "fedbilevel.metrics", "metric", _invalid_reason)
    return {name: metric._replace(name=name) for name, metric in metrics.items()}


def _invalid_reason(metric: Any) -> str | None:
    is_metric = isinstance(metric, Metric)
    return None if is_metric else "it is not a fedbilevel.metrics.Metric."


def find_metric(name: str) -> Metric:
    """Return a metric that a file names, by its name or by `module:METRIC`.

    Raises:
        SettingError: if the name is unknown, or the object is not a metric.

    Example:
        >>> find_metric("lower_error").title
        '‖y − y*(x)‖²'
    """
    known = list_metrics().keys() - {metric.name for metric in ALWAYS}
    metric = import_object(name) if ":" in name else list_metrics().get(name)
    if not isinstance(metric, Metric) or metric in ALWAYS:
        raise SettingError(
            "metrics", f"{name!r} is not a metric to name here; {nearest(name, known)}"
        )
    return metric


def title_of(name: str) -> str:
    """Return the title of a metric in text and plots.

    Example:
        >>> title_of("training_loss"), title_of("balanced_accuracy")
        ('training loss', 'balanced accuracy')
    """
    metric = list_metrics().get(name)
    return metric.title if metric else TITLES.get(name, name.replace("_", " "))
