"""What a person calls a figure."""

TITLES = {
    "loss": "validation loss",
    "training_loss": "training loss",
    "detection": "wrong labels found (AUC)",
    "hypergradient": "‖∇Φ(x)‖²",
    "lower_error": "‖y − y*(x)‖²",
}
"""Figures that are better known by other words."""


def title_of(figure: str) -> str:
    """Return what a person calls a figure.

    Example:
        >>> title_of("balanced_accuracy")
        'balanced accuracy'
    """
    return TITLES.get(figure, figure.replace("_", " "))
