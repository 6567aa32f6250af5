"""Limits on the norm of an upload and on its distance from the server's point."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.settings import register


def _is_above(least: float, limit: Any) -> bool:
    if limit is None or isinstance(limit, jax.core.Tracer):
        return True
    number = isinstance(limit, int | float | np.number | jax.Array)
    return (
        number
        and not isinstance(limit, bool)
        and np.ndim(limit) == 0
        and (bool(limit > least))
    )


@register
@dataclass(frozen=True)
class Limits:
    """Limits on uploads. The server excludes an upload that exceeds them.

    An upload must be finite in any case.

    Attributes:
        norm: largest accepted Euclidean norm of an upload; None for no limit.
        distance: largest accepted distance of an upload from the server's point, for
            each variable, as a multiple of the median device's distance; None for no
            limit. More than half of the devices of an exchange must be honest.
            Malicious devices with a share p of the weight prevail if they always send
            the largest accepted upload and the limit is above (1 − p) / p: see
            docs/security.md.

    Example:
        >>> Limits(norm=0.0)
        Traceback (most recent call last):
        ...
        ValueError: norm of Limits is 0.0. Pass a number above 0, or None to accept any
        finite upload.
    """

    norm: tree.Scalar | None = None
    distance: tree.Scalar | None = None

    def __post_init__(self) -> None:
        if not _is_above(0.0, self.norm):
            raise ValueError(
                f"norm of Limits is {self.norm!r}. Pass a number above 0, or None to "
                "accept any finite upload."
            )
        if not _is_above(1.0, self.distance):
            raise ValueError(
                f"distance of Limits is {self.distance!r}. Pass a number above 1, the "
                "largest accepted multiple of the median device's distance, or None "
                "to accept any distance."
            )

    @property
    def names(self) -> list[tuple[str, str]]:
        """The limits in use, for the rules of transforms.

        Example:
            >>> Limits(norm=8.0).names
            [('norm_limit', 'Limits(norm=8)')]
        """
        limits = {"norm": self.norm, "distance": self.distance}
        return [
            (f"{name}_limit", f"Limits({name}={float(limit):g})")
            for name, limit in limits.items()
            if limit is not None
        ]

    @property
    def violation(self) -> str:
        """The reason why an upload is excluded.

        Example:
            >>> Limits(norm=8.0).violation
            'upload is not finite or exceeds the norm limit of 8'
        """
        faults = ["is not finite"]
        if self.norm is not None:
            faults.append(f"exceeds the norm limit of {float(self.norm):g}")
        if self.distance is not None:
            faults.append(
                f"moves more than {float(self.distance):g} times as far as that of the "
                "median device (distance limit)"
            )
        return f"upload {' or '.join(faults)}"

    @property
    def single_violation(self) -> str:
        """The reason why an upload is excluded regardless of other devices' uploads.

        Example:
            >>> Limits(norm=8.0, distance=2.0).single_violation
            'upload is not finite or exceeds the norm limit of 8'
        """
        return replace(self, distance=None).violation

    @property
    def cure(self) -> str:
        """The remedy for limits that are too small; empty without limits.

        Example:
            >>> Limits(norm=8.0).cure
            'raise the norm limit'
        """
        names = [name for name in ("norm", "distance") if getattr(self, name)]
        return f"raise the {' or the '.join(names)} limit" if names else ""


NO_LIMITS = Limits()
"""Limits that accept any finite upload."""


def reach_of(
    library: Any,
    distances: Float[Array | np.ndarray, "variables devices"],
    allowed: Bool[Array | np.ndarray, "devices"],
    limit: tree.Scalar,
) -> Any:
    """Return the largest accepted distance in each variable: a multiple of the median.

    With an even number of devices the median is the larger of the two middle values, so
    that of two devices neither excludes the other. If the median device did not move a
    variable, the median over all variables together is used. If that is 0 as well, any
    distance is accepted.

    Args:
        library: `numpy` or `jax.numpy`.
        distances: distance of each device's upload in each variable.
        allowed: mask of the uploads that are finite and within the norm limit.
        limit: largest accepted multiple of the median.

    Example:
        >>> gone = np.array([[1.0, 2.0, 3.0, 9e9], [0.0, 0.0, 0.0, 1.0]])
        >>> reach_of(np, gone, np.array([True] * 4), 10.0)
        array([30., 30.])
    """
    # Distances are divided by the largest, as squares may exceed the range.
    peak = library.max(distances, axis=0, initial=0)
    finite = library.isfinite(peak) & (peak > 0)
    unit = library.where(finite, peak, 1)
    together = unit * library.sqrt(library.sum((distances / unit[None]) ** 2, axis=0))
    rows = library.concatenate([distances, together[None]])
    ordered = library.sort(library.where(allowed[None], rows, np.inf), axis=1)
    middle = ordered[:, library.sum(allowed) // 2]
    medians = library.where(middle[:-1] > 0, middle[:-1], middle[-1])
    return limit * library.where(medians > 0, medians, np.inf)
