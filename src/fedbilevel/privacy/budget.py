"""A limit of the privacy loss of a run."""

from dataclasses import dataclass
from typing import Annotated

from fedbilevel.mathematics.settings import Positive, Range, check_ranges


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that all releases of a run may spend together.

    Attributes:
        epsilon: ε, above 0.
        delta: δ, above 0 and below 1; usually below 1 / number of devices.

    Example:
        >>> Budget(epsilon=2.0, delta=1e-5).epsilon
        2.0
        >>> Budget(epsilon=2.0, delta=1.0)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: Budget: delta is 1.0, expected
        a number, above 0 and below 1.
    """

    epsilon: Positive
    delta: Annotated[float, Range(above=0.0, below=1.0)]

    def __post_init__(self) -> None:
        check_ranges(self)
