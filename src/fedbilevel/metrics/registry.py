"""The metrics that runs can measure: the library's, plug-ins, and `module:METRIC`.

A plug-in is an installed package with entry points, such as

    [project.entry-points."fedbilevel.metrics"]
    sharpness = "my_package.sharpness:SHARPNESS"
"""

from collections.abc import Mapping
from functools import cache

from fedbilevel.mathematics.settings import SettingError
from fedbilevel.metrics.losses import LOSS, TRAINING_LOSS
from fedbilevel.metrics.metric import Metric
from fedbilevel.metrics.stationarity import HYPERGRADIENT, LOWER_ERROR
from fedbilevel.nearest import nearest
from fedbilevel.plugins import (
    import_object,
    load_plugins,
    warn_excluded,
    warn_name_taken,
)

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
    metrics = {metric.name: metric for metric in BUILT_IN}
    for point, metric in load_plugins("fedbilevel.metrics"):
        if not isinstance(metric, Metric) or metric in ALWAYS:
            warn_excluded(point, "it is not a fedbilevel.metrics.Metric.")
        elif point.name in metrics:
            warn_name_taken(point, "metric")
        else:
            metrics[point.name] = metric._replace(name=point.name)
    return metrics


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
