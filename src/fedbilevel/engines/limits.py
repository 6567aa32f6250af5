"""How large an upload may be, and how far it may go, to enter the mean."""

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
    """What uploads are held to besides being finite. Who exceeds it is left out.

    Attributes:
        norm: the largest Euclidean norm of an upload; none to allow any.
        distance: how many times as far as the median device an upload may go from what
            the server had sent, each variable for itself; none to allow any. More than
            half of the devices of an exchange have to be honest. Bad ones with a part p
            of the weight win if they always send the most and the limit is above
            (1 − p) / p: see docs/security.md.

    Example:
        >>> Limits(distance=10.0).norm is None
        True
        >>> Limits(norm=0.0)
        Traceback (most recent call last):
        ...
        ValueError: the norm limit is 0.0; give a number above 0, or None to allow any
        finite upload.
    """

    norm: tree.Scalar | None = None
    distance: tree.Scalar | None = None

    def __post_init__(self) -> None:
        if not _is_above(0.0, self.norm):
            raise ValueError(
                f"the norm limit is {self.norm!r}; give a number above 0, or None to "
                "allow any finite upload."
            )
        if not _is_above(1.0, self.distance):
            raise ValueError(
                f"the distance limit is {self.distance!r}; give a number above 1, how "
                "many times as far as the median device an upload may go, or None to "
                "allow any."
            )

    @property
    def violation(self) -> str:
        """What is wrong with an upload that does not count.

        Example:
            >>> Limits(norm=8.0).violation
            'upload is not finite or exceeds the norm limit of 8'
        """
        faults = ["is not finite"]
        if self.norm is not None:
            faults.append(f"exceeds the norm limit of {float(self.norm):g}")
        if self.distance is not None:
            faults.append(
                f"goes more than {float(self.distance):g} times as far as the median "
                "device (distance limit)"
            )
        return f"upload {' or '.join(faults)}"

    @property
    def single_violation(self) -> str:
        """What is wrong with an upload that does not count, whatever others sent.

        Example:
            >>> Limits(norm=8.0, distance=2.0).single_violation
            'upload is not finite or exceeds the norm limit of 8'
        """
        return replace(self, distance=None).violation

    @property
    def cure(self) -> str:
        """What to do about limits that are too small, in words; nothing without any.

        Example:
            >>> Limits(norm=8.0).cure
            'raise the norm limit'
        """
        names = [name for name in ("norm", "distance") if getattr(self, name)]
        return f"raise the {' or the '.join(names)} limit" if names else ""


NO_LIMITS = Limits()
"""Any finite upload counts."""


def reach_of(
    library: Any,
    distances: Float[Array | np.ndarray, "variables devices"],
    allowed: Bool[Array | np.ndarray, "devices"],
    limit: tree.Scalar,
) -> Any:
    """Return how far uploads may go in each variable: a multiple of the median.

    Of an even number of devices the larger of the two in the middle, so that of two
    devices neither excludes the other. A variable that the median device did not move
    is held to the median of all variables together; where that is 0 as well, nothing
    is known of how far is too far, and any distance counts.

    Args:
        library: NumPy, or JAX's.
        distances: how far each device has gone in each variable.
        allowed: whose uploads are finite and within the norm limit.
        limit: how many times as far as the median.

    Example:
        >>> gone = np.array([[1.0, 2.0, 3.0, 9e9], [0.0, 0.0, 0.0, 1.0]])
        >>> reach_of(np, gone, np.array([True] * 4), 10.0)
        array([30., 30.])
    """
    # In units of the largest, as squares may be beyond the range.
    peak = library.max(distances, axis=0, initial=0)
    finite = library.isfinite(peak) & (peak > 0)
    unit = library.where(finite, peak, 1)
    together = unit * library.sqrt(library.sum((distances / unit[None]) ** 2, axis=0))
    rows = library.concatenate([distances, together[None]])
    ordered = library.sort(library.where(allowed[None], rows, np.inf), axis=1)
    middle = ordered[:, library.sum(allowed) // 2]
    medians = library.where(middle[:-1] > 0, middle[:-1], middle[-1])
    return limit * library.where(medians > 0, medians, np.inf)
