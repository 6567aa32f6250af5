"""The differential privacy that a run spends, computed from its rounds."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Private
from fedbilevel.engines.limits import Limits
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
from fedbilevel.privacy.library import dp_accounting
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
    limits: Limits,
    private: Private,
) -> Spending | None:
    """Return what a run spends; None if its algorithm adds no noise.

    Args:
        problem: the two losses.
        algorithm: algorithm with its transforms.
        participation: function that selects the devices of each round.
        engine: engine of the run.
        weights: weights of all devices.
        cohort_size: usual number of participants.
        limits: limits of uploads.
        private: first private state of a device.

    Raises:
        ImportError: if dp-accounting is not installed.
        ValueError: if the noise does not protect what the settings publish.
    """
    noise = noise_of(algorithm)
    if noise is None:
        return None
    if limits.distance is not None:
        raise ValueError(
            f"The distance limit is {float(limits.distance):g}, but under noise one "
            "device must not decide whether others count, as it does by the median. "
            "Omit the distance limit: clipping already limits each update."
        )
    fewest = 1
    if isinstance(noise, DeviceNoise):
        fewest = noise.devices
        _check_device_noise(noise, engine, weights, cohort_size)
    # A missing library is reported before the run, not after its first round.
    dp_accounting()
    usual = _noised(algorithm.phases(problem))
    opening = _noised(algorithm.opening(problem)) or usual
    return Spending(
        float(noise.multiplier),
        opening,
        usual,
        sampling_of(participation, engine, weights, private),
        noise.delta,
        noise.epsilon,
        fewest,
    )


def refuse_budget(algorithm: FederatedAlgorithm) -> None:
    """Raise if the noise of an algorithm has a budget that many runs would exceed.

    Raises:
        ValueError: if it has.
    """
    noise = noise_of(algorithm)
    if noise is not None and noise.epsilon is not None:
        raise ValueError(
            f"The noise has the budget epsilon={noise.epsilon:g}, but many runs on the "
            "same data spend more than one. Remove epsilon from the noise; the runs "
            "are then a simulation without a guarantee."
        )


def _check_device_noise(
    noise: DeviceNoise,
    engine: Any,
    weights: Float[np.ndarray, "devices"],
    cohort_size: int,
) -> None:
    """Raise if the noise of the participants would be less than accounted for."""
    if getattr(engine, "sees_uploads", False):
        raise ValueError(
            "DeviceNoise protects a sum of updates, but the server of this federation "
            "sees each of them. Use GaussianNoise, which trusts the server."
        )
    if np.any(weights != weights[0]):
        raise ValueError(
            "DeviceNoise needs equal weights of the devices, since each adds the same "
            "noise. Omit weights, or use GaussianNoise."
        )
    if cohort_size < noise.devices:
        raise ValueError(
            f"DeviceNoise: devices is {noise.devices}, but the number of participants "
            f"is {cohort_size}, so a mean has less noise than ε is computed for. Lower "
            f"devices to {cohort_size}, or raise the number of participants."
        )


def _noised(phases: Any) -> int:
    return sum(phase.release is not None for phase in phases)


def sampling_of(
    participation: Participation,
    engine: Any,
    weights: Float[np.ndarray, "devices"],
    private: Private = (),
) -> Sampling:
    """Return the selection of participants, as far as it lowers ε.

    Example:
        >>> from fedbilevel import Simulation
        >>> sampling_of(UniformSample(2), Simulation(), np.ones(5))
        WithoutReplacement(sample=2, population=5)
    """
    if isinstance(participation, FullParticipation):
        return Everyone()
    # Sampling amplifies only if nobody knows the sample. In a federation its seed is
    # in the experiment file, and devices know whether they were contacted.
    is_hidden = not getattr(engine, "sample_is_public", False)
    # With other weights, a device in the sample changes the shares of all others.
    is_even = bool(np.all(weights == weights[0]))
    # A state shows in which rounds its device participated.
    is_hidden &= not jax.tree.leaves(private)
    if isinstance(participation, UniformSample) and is_hidden and is_even:
        return WithoutReplacement(int(participation.devices), len(weights))
    return UnknownSampling()
