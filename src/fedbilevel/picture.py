"""What a picture is: a figure with words that say how to read it."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure and its caption.

    Attributes:
        name: a word for file names.
        title: what it shows.
        caption: how to read it.
        figure: the figure itself.

    Example:
        >>> Picture("curves", "Losses", "Lower is better.", blank(2, 1)).name
        'curves'
    """

    name: str
    title: str
    caption: str
    figure: "Figure"


POINTS = 500
"""The most points of a curve: more than a page is wide."""

Point = TypeVar("Point")


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return points spread evenly over all of them, no more than a person can see.

    Example:
        >>> len(thinned(range(10_000))), thinned(range(10_000))[-1]
        (500, 9999)
    """
    if len(points) <= POINTS:
        return points
    places = (round(n * (len(points) - 1) / (POINTS - 1)) for n in range(POINTS))
    return [points[place] for place in places]


BARS = 60
"""The most numbers that have a bar each."""


def blank(width: float | int, height: float | int) -> "Figure":
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
    return Figure(figsize=(width, height), layout="constrained")


def svg_of(picture: Picture) -> str:
    """Return a picture as the text of an SVG file, the same for the same picture.

    Example:
        >>> "<svg" in svg_of(Picture("curves", "Losses", "", blank(2, 1)))
        True
    """
    drawn = io.StringIO()
    picture.figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
