"""Data with numbers that are not finite are refused before a run begins."""

import jax
import numpy as np

from fedbilevel.data.devices import InMemoryDevices


def require_finite(devices: InMemoryDevices) -> None:
    """Refuse examples with NaN or infinite numbers, and say whose they are.

    Example:
        >>> from fedbilevel import LocalExamples
        >>> good, bad = np.ones((2, 3)), np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
        >>> local = LocalExamples(upper=good, lower=bad)
        >>> require_finite(InMemoryDevices([local]))
        Traceback (most recent call last):
        ...
        ValueError: row 1 of the lower examples of device 0 has a number that is not
        finite; fill it in or leave the example out.
    """
    for level, arrays, sizes in (
        ("upper", devices.pooled.upper, devices.upper_sizes),
        ("lower", devices.pooled.lower, devices.lower_sizes),
    ):
        for leaf in map(np.asarray, jax.tree.leaves(arrays)):
            rows = leaf.reshape(len(leaf), -1)
            if not np.issubdtype(leaf.dtype, np.floating) or np.isfinite(rows).all():
                continue
            row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            ends = np.cumsum(sizes)
            device = int(np.searchsorted(ends, row, side="right"))
            own = row - int(ends[device] - sizes[device])
            raise ValueError(
                f"row {own} of the {level} examples of device {device} has a number "
                "that is not finite; fill it in or leave the example out."
            )
