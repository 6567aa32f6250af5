"""The powers of K and ε that the corollaries give to an algorithm's settings."""

from math import ceil, floor
from typing import NamedTuple

from fedbilevel.mathematics.schedules import CubeRootDecay

ROUNDING = 1e-13
"""Relative rounding error within which a number counts as an integer."""


class Powers(NamedTuple):
    """A setting that is proportional to K^devices · ε^accuracy.

    Example:
        >>> Powers(devices=1.0, accuracy=0.5).factor(devices=4.0, accuracy=0.25)
        2.0
    """

    devices: float
    accuracy: float

    def factor(self, *, devices: float, accuracy: float) -> float:
        """Return the factor of the setting for factors of K and ε.

        Example:
            >>> Powers(devices=-1.0, accuracy=0.0).factor(devices=4.0, accuracy=0.25)
            0.25
        """
        return float(devices**self.devices * accuracy**self.accuracy)


class Factors(NamedTuple):
    """The factor of each setting.

    Attributes:
        steps: factor of T.
        local_steps: factor of p.
        learning_rate: factor of η.
        mixing: factor of α and β.
        initial_batch_size: factor of B; 1 if the algorithm has no B.
    """

    steps: float
    local_steps: float
    learning_rate: float
    mixing: float
    initial_batch_size: float

    def decay(self, rate: CubeRootDecay) -> CubeRootDecay:
        """Return a decaying rate with the factors of η and of T applied.

        The scale is then proportional to K^(2/3) and the plateau to K² p³, as in
        Theorem 3.

        Example:
            >>> factors = LOCAL_BSGVRM_LAW.factors(devices=8.0, accuracy=1.0)
            >>> factors.decay(CubeRootDecay(scale=1.0, plateau=80.0))
            CubeRootDecay(scale=4.0, plateau=10.0)
        """
        stretch = self.steps ** (1 / 3)
        return CubeRootDecay(
            scale=rate.scale * (self.learning_rate * stretch),
            plateau=rate.plateau * self.steps,
        )


class ScalingLaw(NamedTuple):
    """The dependence of an algorithm's settings on K and ε.

    The corollaries state it up to constants, so it converts settings for one K and ε to
    settings for another. The rates ρ_1 and ρ_2 do not depend on K and ε.

    Attributes:
        steps: powers of T.
        local_steps: powers of p.
        learning_rate: powers of η.
        mixing: powers of α and β.
        initial_batch_size: powers of B; None if the algorithm has no B.
        mixing_power: power of η that multiplies α and β in the algorithm.

    Example:
        >>> LOCAL_BSGM_LAW.factors(devices=4.0, accuracy=1.0).learning_rate
        4.0
    """

    steps: Powers
    local_steps: Powers
    learning_rate: Powers
    mixing: Powers
    initial_batch_size: Powers | None
    mixing_power: int

    def factors(self, *, devices: float, accuracy: float) -> Factors:
        """Return the factor of each setting for factors of K and ε.

        Example:
            >>> LOCAL_BSGVRM_LAW.factors(devices=4.0, accuracy=1.0)
            Factors(steps=0.25, local_steps=0.25, learning_rate=4.0, mixing=0.25,
                    initial_batch_size=0.25)
        """
        powers = (
            self.steps,
            self.local_steps,
            self.learning_rate,
            self.mixing,
            self.initial_batch_size or Powers(0, 0),
        )
        return Factors(
            *(power.factor(devices=devices, accuracy=accuracy) for power in powers)
        )

    def accuracy(self, *, devices: float, steps: float) -> float:
        """Return the factor of ε for factors of K and T.

        Example:
            >>> LOCAL_BSGM_LAW.accuracy(devices=4.0, steps=1.0)  # (KT)^(-1/2)
            0.5
        """
        return float((steps / devices**self.steps.devices) ** (1 / self.steps.accuracy))

    def require_weight(self, name: str, mixing: float, learning_rate: float) -> None:
        """Raise an error if the weight of a fresh sample is above 1.

        Args:
            name: name of the mixing weight.
            mixing: α or β.
            learning_rate: largest η.

        Raises:
            ValueError: if αη (Algorithm 1) or αη² (Algorithm 2) exceeds 1.

        Example:
            >>> LOCAL_BSGVRM_LAW.require_weight("upper_mixing", 1.0, 2.0)
            Traceback (most recent call last):
            ...
            ValueError: upper_mixing · learning_rate^2 would be 4, expected at most 1.
            Use fewer devices, or start from settings with a lower upper_mixing.
        """
        weight = mixing * learning_rate**self.mixing_power
        if weight > 1 + ROUNDING:
            power = f"^{self.mixing_power}" if self.mixing_power > 1 else ""
            raise ValueError(
                f"{name} · learning_rate{power} would be {weight:.3g}, expected at "
                "most 1. Use fewer devices, or start from settings with a lower "
                f"{name}."
            )


LOCAL_BSGM_LAW = ScalingLaw(  # Corollary 2, and with ε = O((KT)^(-1/2)) Corollary 1
    steps=Powers(-1, -2),
    local_steps=Powers(-1, -1 / 2),
    learning_rate=Powers(1, 1),
    mixing=Powers(0, 0),
    initial_batch_size=None,
    mixing_power=1,
)
"""LocalBSGM: T ∝ 1/(Kε²), p ∝ 1/(Kε^½), η ∝ Kε."""

LOCAL_BSGVRM_LAW = ScalingLaw(  # Corollary 4, and with ε = O((KT)^(-2/3)) Corollary 3
    steps=Powers(-1, -3 / 2),
    local_steps=Powers(-1, -1 / 2),
    learning_rate=Powers(1, 1 / 2),
    mixing=Powers(-1, 0),
    initial_batch_size=Powers(-1, -1 / 2),
    mixing_power=2,
)
"""LocalBSGVRM: T ∝ 1/(Kε^(3/2)), p and B ∝ 1/(Kε^½), η ∝ Kε^½, α and β ∝ 1/K."""


def scaled_local_steps(local_steps: int, factor: float) -> int:
    """Return p multiplied by a factor, rounded down to limit the drift of devices.

    Raises:
        ValueError: if the result is below 1.

    Example:
        >>> scaled_local_steps(10, 1 / 3)
        3
    """
    exact = local_steps * factor * (1 + ROUNDING)
    if exact < 1:
        raise ValueError(
            f"local_steps would fall from {local_steps} to {exact:.3g}, below 1: the "
            "corollaries reduce local_steps as devices are added. Use fewer devices, "
            "or start from settings with more local_steps."
        )
    return floor(exact)


def scaled_up(count: int, factor: float) -> int:
    """Return a count multiplied by a factor, rounded up.

    Example:
        >>> scaled_up(10, 1 / 3), scaled_up(10, 0.1)
        (4, 1)
    """
    return ceil(count * factor * (1 - ROUNDING))
