"""What the units of a learnt representation look at."""

import numpy as np
from jaxtyping import Array, Float

from fedbilevel.pictures.picture import Picture, blank

SHOWN = 24


def unit_images(
    weights: Float[Array | np.ndarray, "units pixels"], shape: tuple[int, int]
) -> Picture:
    """Return the weights of the first layer's units as images.

    Args:
        weights: one row a unit.
        shape: height and width of an image.

    Example:
        >>> unit_images(np.zeros((3, 64)), (8, 8)).name
        'units'
    """
    chosen = np.asarray(weights)[:SHOWN]
    columns = min(8, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = blank(columns, rows)
    limit = float(np.abs(chosen).max()) or 1.0
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.axis("off")
    for panel, row in zip(panels, chosen, strict=False):
        panel.imshow(row.reshape(shape), cmap="RdBu", vmin=-limit, vmax=limit)
    words = (
        "Each image is a unit of the first layer: blue pixels raise its output, red "
        "ones lower it."
    )
    return Picture("units", "What the representation looks at", words, figure)
