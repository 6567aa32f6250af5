"""What a picture is: a figure with words that say how to read it."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = {"digits": (8, 8), "mnist": (28, 28), "fashion_mnist": (28, 28)}
"""The data sets whose features are the pixels of an image, and its height and width."""


class Picture(NamedTuple):
    """A figure and its caption.

    Attributes:
        name: a word for file names.
        title: what it shows.
        words: how to read it.
        figure: the figure itself.

    Example:
        >>> Picture("curves", "Losses", "Lower is better.", blank(2, 1)).name
        'curves'
    """

    name: str
    title: str
    words: str
    figure: "Figure"


def blank(width: float | int, height: float | int, **options: Any) -> "Figure":
    """Return an empty figure of a size in inches, the same in all pictures.

    Example:
        >>> float(blank(4, 3).get_figwidth())
        4.0
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib; run: pip install 'fedbilevel[commands]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained", **options)
