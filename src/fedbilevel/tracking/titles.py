"""Titles of metrics in text and plots."""

TITLES = {
    "loss": "validation loss",
    "training_loss": "training loss",
    "detection": "corrupted labels detected (AUC)",
    "hypergradient": "‖∇Φ(x)‖²",
    "lower_error": "‖y − y*(x)‖²",
}
"""Titles of metrics that differ from their names."""


def title_of(metric: str) -> str:
    """Return the title of a metric.

    Example:
        >>> title_of("balanced_accuracy")
        'balanced accuracy'
    """
    return TITLES.get(metric, metric.replace("_", " "))
