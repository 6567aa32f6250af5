"""Bounds of the average stationarity, term by term.

The theorems bound the average over a run's steps of
E‖∇Φ(x̄_t)‖² + L̃² E‖ȳ_t − y*(x̄_t)‖².

The bounds are worst cases. On a noisy quadratic, Theorem 1's bound was 2,800 times the
measured average of a run at its ceilings. By the bound, a run would need 9 million
times the steps of a tuned run to reduce the average to a tenth of its first value
(`tests/metrics/test_looseness.py`). Use the bounds to find the dominant term and its
scaling, not to choose the number of steps.
"""

from typing import NamedTuple


class StepCeilings(NamedTuple):
    """The largest step settings that a theorem allows.

    Attributes:
        upper_rate: ρ_1.
        lower_rate: ρ_2.
        learning_rate: η at those rates.
    """

    upper_rate: float
    lower_rate: float
    learning_rate: float


class Start(NamedTuple):
    """The distance of a run's initial point from a solution.

    Attributes:
        objective_gap: Φ(x_0) − Φ(x_*).
        lower_error: ‖y_0 − y*(x_0)‖².
    """

    objective_gap: float
    lower_error: float


class Bound(NamedTuple):
    """A theorem's bound of the average stationarity, by the cause of each term.

    Attributes:
        objective_gap: term of Φ(x_0) − Φ(x_*); it vanishes with the number of steps.
        lower_start: term of ‖y_0 − y*(x_0)‖²; it vanishes as well.
        upper_opening: noise of the first hypergradient; it vanishes as well.
        lower_opening: noise of the first lower gradient; it vanishes as well.
        upper_noise: noise of the later hypergradients.
        lower_noise: noise of the later lower gradients.
        series_bias: bias of a Neumann series truncated after Q terms.
        upper_drift: drift of devices between two exchanges by their hypergradients.
        lower_drift: drift of devices between two exchanges by their lower gradients.

    Example:
        >>> bound = Bound(4.0, 1.0, 0.5, 0.5, 0.0, 0.0, 2.0, 0.0, 0.0)
        >>> bound.total, bound.largest
        (8.0, 'objective_gap')
    """

    objective_gap: float
    lower_start: float
    upper_opening: float
    lower_opening: float
    upper_noise: float
    lower_noise: float
    series_bias: float
    upper_drift: float
    lower_drift: float

    @property
    def total(self) -> float:
        """The bound: the sum of all terms."""
        return sum(self)

    @property
    def largest(self) -> str:
        """The name of the largest term."""
        return max(zip(self, self._fields, strict=True))[1]


def require_covered(theorem: int, name: str, value: float, ceiling: float) -> None:
    """Raise an error for a setting that a theorem does not cover.

    Example:
        >>> require_covered(1, "learning_rate", 0.1, ceiling=0.001)
        Traceback (most recent call last):
        ...
        ValueError: learning_rate is 0.1, but Theorem 1 requires above 0 and at most
        0.001. Lower learning_rate; otherwise the theorem gives no bound.
    """
    # The ceiling is allowed; the tolerance is for its rounding error.
    if not 0 < value <= ceiling * (1 + 1e-9):
        raise ValueError(
            f"{name} is {value:.3g}, but Theorem {theorem} requires above 0 and at "
            f"most {ceiling:.3g}. Lower {name}; otherwise the theorem gives no bound."
        )


def require_counts(**counts: int) -> None:
    """Raise an error for numbers of devices, steps or examples below 1.

    Example:
        >>> require_counts(devices=4, steps=0)
        Traceback (most recent call last):
        ...
        ValueError: steps is 0, expected at least 1.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, expected at least 1.")
