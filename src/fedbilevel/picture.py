"""A picture: a matplotlib figure with a title and a caption."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fedbilevel.extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure and its caption.

    Attributes:
        name: file name without its ending.
        title: one line above the figure.
        caption: explanation of how to read the figure.
        figure: matplotlib figure.
    """

    name: str
    title: str
    caption: str
    figure: "Figure"


POINTS = 500
"""Maximum number of points of a curve: more than the pixels of a page's width."""

Point = TypeVar("Point")


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most `POINTS` points, spread evenly over all of them.

    Example:
        >>> len(thin(range(10_000))), thin(range(10_000))[-1]
        (500, 9999)
    """
    if len(points) <= POINTS:
        return points
    indices = (round(n * (len(points) - 1) / (POINTS - 1)) for n in range(POINTS))
    return [points[index] for index in indices]


BARS = 60
"""Maximum number of values that are drawn as bars."""


def blank(width: float | int, height: float | int) -> "Figure":
    """Return an empty figure of a size in inches, with the layout of all pictures."""
    with needs("Pictures", "matplotlib", "'fedbilevel[commands]'"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def svg_of(picture: Picture) -> str:
    """Return a picture as the text of an SVG file, without the current date.

    Example:
        >>> "<svg" in svg_of(Picture("curves", "Losses", "", blank(2, 1)))
        True
    """
    svg = io.StringIO()
    picture.figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
