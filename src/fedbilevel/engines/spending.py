"""The differential privacy that a run spends, computed from its rounds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.engines.participation import (
    FullParticipation,
    Participation,
    UniformSample,
)
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.privacy import (
    Budget,
    Everyone,
    GaussianRelease,
    Sampling,
    UnknownSampling,
    WithoutReplacement,
    count_within,
    spent,
)
from fedbilevel.transforms.noise import DeviceNoise
from fedbilevel.transforms.transformed import noise_of


@dataclass(frozen=True)
class Spending:
    """The noised means of a run, and its budget.

    All exchanges of a round have the same participants. So k noised means with
    multiplier m are one with multiplier m / √k, of the round's sample (Dong, Roth and
    Su, Gaussian differential privacy, arXiv 1905.02383, Corollary 2).

    Attributes:
        multiplier: noise multiplier of one exchange.
        opening: number of noised means of the first round.
        usual: number of noised means of every later round.
        sampling: selection of the participants.
        delta: δ.
        budget: largest ε; None without a budget.
        fewest: smallest number of uploads of an exchange, whose noise is accounted for.

    Example:
        >>> spending = Spending(10.0, 1, 1, Everyone(), delta=1e-5, budget=2.0)
        >>> round(spending.epsilon_after(25), 2), spending.rounds_within(1000)
        (1.99, 25)
    """

    multiplier: float
    opening: int
    usual: int
    sampling: Sampling
    delta: float
    budget: float | None = None
    fewest: int = 1

    def epsilon_after(self, rounds: int, repeated: int = 0) -> float:
        """Return the ε that has been spent after some rounds.

        Args:
            rounds: number of rounds.
            repeated: number of noised means that were computed again, with other noise.
        """
        if not rounds and not repeated:
            return 0.0
        total = self._earlier(repeated)
        if rounds > 1:
            usual = self._release(self.usual)
            total[usual] = total.get(usual, 0) + rounds - 1
        return spent(total, self.delta)

    def rounds_within(self, rounds: int, repeated: int = 0) -> int:
        """Return the number of rounds that the budget allows, at most `rounds`."""
        if self.budget is None or self.epsilon_after(rounds, repeated) <= self.budget:
            return rounds
        if self.epsilon_after(1, repeated) > self.budget:
            return 0
        budget = Budget(self.budget, self.delta)
        release = self._release(self.usual)
        return 1 + count_within(budget, release, self._earlier(repeated))

    def _earlier(self, repeated: int) -> dict[GaussianRelease, int]:
        """Return the releases of the first round, and repeated ones."""
        releases = {self._release(self.opening): 1}
        if repeated:
            # Nothing is known about the sample of a lost round.
            single = GaussianRelease(self.multiplier, UnknownSampling())
            releases[single] = releases.get(single, 0) + repeated
        return releases

    def _release(self, means: int) -> GaussianRelease:
        return GaussianRelease(self.multiplier / max(1, means) ** 0.5, self.sampling)


def spending_of(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    participation: Participation,
    engine: Any,
    weights: Float[np.ndarray, "devices"],
    cohort_size: int,
) -> Spending | None:
    """Return what a run spends; None if its algorithm adds no noise.

    Args:
        problem: the two losses.
        algorithm: algorithm with its transforms.
        participation: function that selects the devices of each round.
        engine: engine of the run.
        weights: weights of all devices.
        cohort_size: usual number of participants.

    Raises:
        ImportError: if dp-accounting is not installed.
        ValueError: if too few devices add noise, or their weights differ.
    """
    noise = noise_of(algorithm)
    if noise is None:
        return None
    fewest = 1
    if isinstance(noise, DeviceNoise):
        fewest = noise.devices
        _check_device_noise(noise, engine, weights, cohort_size)
    usual = _noised(algorithm.phases(problem))
    opening = _noised(algorithm.opening(problem)) or usual
    spending = Spending(
        float(noise.multiplier),
        opening,
        usual,
        _sampling(participation, engine, weights),
        noise.delta,
        noise.epsilon,
        fewest,
    )
    # A missing library is reported before the run, not after its first round.
    spending.epsilon_after(1)
    return spending


def _check_device_noise(
    noise: DeviceNoise,
    engine: Any,
    weights: Float[np.ndarray, "devices"],
    cohort_size: int,
) -> None:
    """Raise if the noise of the participants would be less than accounted for."""
    if np.any(weights != weights[0]):
        raise ValueError(
            "DeviceNoise needs equal weights of the devices, since each adds the same "
            "noise. Omit weights, or use GaussianNoise."
        )
    quorum = getattr(engine, "quorum", cohort_size)
    if quorum < noise.devices:
        name = "quorum" if hasattr(engine, "quorum") else "number of participants"
        raise ValueError(
            f"DeviceNoise: devices is {noise.devices}, but the {name} is {quorum}, "
            "so a mean may have less noise than ε is computed for. Lower devices to "
            f"{quorum}, or raise the {name}."
        )


def _noised(phases: Any) -> int:
    return sum(phase.release is not None for phase in phases)


def _sampling(
    participation: Participation, engine: Any, weights: Float[np.ndarray, "devices"]
) -> Sampling:
    if isinstance(participation, FullParticipation):
        return Everyone()
    # Sampling amplifies only if nobody knows the sample. In a federation its seed is
    # in the experiment file, and devices know whether they were contacted.
    is_hidden = not getattr(engine, "sample_is_public", False)
    # With other weights, a device in the sample changes the shares of all others.
    is_even = bool(np.all(weights == weights[0]))
    if isinstance(participation, UniformSample) and is_hidden and is_even:
        return WithoutReplacement(int(participation.devices), len(weights))
    return UnknownSampling()
