"""What the theorems bound, and by which terms.

It is the average over a run's steps of E‖∇Φ(x̄_t)‖² + L̃² E‖ȳ_t − y*(x̄_t)‖².

The bounds are worst cases. On a noisy quadratic, Theorem 1's was 2,800 times the
measured average of a run at its ceilings, and it would have a run take 9 million times
the steps of a tuned one to bring the average to a tenth of its first value
(`tests/metrics/test_looseness.py`). Read in them which term dominates and how it
scales, not how many steps to take.
"""

from typing import NamedTuple


class StepCeilings(NamedTuple):
    """The largest step settings that a theorem allows.

    Attributes:
        upper_rate: ρ_1.
        lower_rate: ρ_2.
        learning_rate: η at those rates.

    Example:
        >>> StepCeilings(0.1, 0.2, 0.3).learning_rate
        0.3
    """

    upper_rate: float
    lower_rate: float
    learning_rate: float


class Start(NamedTuple):
    """How far from a solution a run begins.

    Attributes:
        objective_gap: Φ(x_0) − Φ(x_*).
        lower_error: ‖y_0 − y*(x_0)‖².

    Example:
        >>> Start(objective_gap=2.0, lower_error=0.0).objective_gap
        2.0
    """

    objective_gap: float
    lower_error: float


class Bound(NamedTuple):
    """A theorem's bound of the average stationarity, by what each term is due to.

    Attributes:
        objective_gap: Φ(x_0) − Φ(x_*), fading as the run goes on.
        lower_start: ‖y_0 − y*(x_0)‖², fading.
        upper_opening: the noise of the first hypergradient, fading.
        lower_opening: the noise of the first lower gradient, fading.
        upper_noise: of the later hypergradients.
        lower_noise: of the later lower gradients.
        series_bias: of a Neumann series cut off after Q terms.
        upper_drift: of devices apart between two exchanges, by their hypergradients.
        lower_drift: the same by their lower gradients.

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
        """The bound itself."""
        return sum(self)

    @property
    def largest(self) -> str:
        """The name of the term that dominates."""
        return max(zip(self, self._fields, strict=True))[1]


def require_covered(theorem: int, name: str, value: float, ceiling: float) -> None:
    """Refuse a setting that a theorem does not cover.

    Example:
        >>> require_covered(1, "learning_rate", 0.1, ceiling=0.001)
        Traceback (most recent call last):
        ...
        ValueError: Theorem 1 covers a learning_rate above 0 and up to 0.001 here, but
        it is 0.1; lower it, or do without the theorem.
    """
    # Ceilings are themselves allowed, and come with rounding.
    if not 0 < value <= ceiling * (1 + 1e-9):
        raise ValueError(
            f"Theorem {theorem} covers a {name} above 0 and up to {ceiling:.3g} here, "
            f"but it is {value:.3g}; lower it, or do without the theorem."
        )


def require_counts(**counts: int) -> None:
    """Refuse numbers of devices, steps or examples that are not at least 1.

    Example:
        >>> require_counts(devices=4, steps=0)
        Traceback (most recent call last):
        ...
        ValueError: the theorems need steps at least 1, but it is 0.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"the theorems need {name} at least 1, but it is {count}.")
