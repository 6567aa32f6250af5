"""The differential privacy that a run spends, computed from its rounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase, Private
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.data.devices import Devices, InMemoryDevices, SizedDevices
from fedbilevel.data.examples import DeviceData
from fedbilevel.data.weights import DevicesWithTerms
from fedbilevel.engines.example_releases import BatchUse, batch_uses
from fedbilevel.engines.participation import (
    FullParticipation,
    Participation,
    UniformSample,
)
from fedbilevel.engines.protocol import Job, PrivateEngine, RunState
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.privacy import (
    Budget,
    Everyone,
    GaussianRelease,
    PoissonDraws,
    Sampling,
    UnknownSampling,
    WithoutReplacement,
    count_within,
    spent,
)
from fedbilevel.privacy.library import dp_accounting
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.noise import DeviceNoise
from fedbilevel.transforms.private_batches import Level
from fedbilevel.transforms.transformed import Transformed, noise_of


class Ledger(NamedTuple):
    """The releases of one set of protected data: of devices, or of examples.

    Attributes:
        opening: releases of the first round.
        usual: releases of every later round.
        repeated: releases of an exchange that is computed again with other noise.
    """

    opening: Mapping[GaussianRelease, int]
    usual: Mapping[GaussianRelease, int]
    repeated: Mapping[GaussianRelease, int]

    def before(self, repeated: int) -> dict[GaussianRelease, int]:
        """Return the releases of the first round, and of repeated exchanges."""
        total = Counter(self.opening)
        for release, number in self.repeated.items():
            total[release] += number * repeated
        return {release: number for release, number in total.items() if number}

    def after(self, rounds: int, repeated: int) -> dict[GaussianRelease, int]:
        """Return the releases of some rounds, and of repeated exchanges."""
        total = Counter(self.before(repeated))
        for release, number in self.usual.items():
            total[release] += number * (rounds - 1)
        return {release: number for release, number in total.items() if number}


@dataclass(frozen=True)
class Spending:
    """The releases of a run, and its budget.

    Attributes:
        ledgers: releases of each set of protected data. ε is the largest of theirs.
        opening: number of exchanges of the first round that are counted.
        usual: number of exchanges of every later round that are counted.
        delta: δ.
        budget: largest ε; None without a budget.
        fewest: smallest number of uploads of an exchange, whose noise is accounted for.

    Example:
        >>> spending = spending_of_means(10.0, 1, 1, Everyone(), delta=1e-5, budget=2.0)
        >>> round(spending.epsilon_after(25), 2), spending.rounds_within(1000)
        (1.99, 25)
    """

    ledgers: tuple[Ledger, ...]
    opening: int
    usual: int
    delta: float
    budget: float | None = None
    fewest: int = 1

    def exchanges_after(self, rounds: int) -> int:
        """Return the number of counted exchanges of some rounds."""
        return self.opening + (rounds - 1) * self.usual if rounds else 0

    def epsilon_after(self, rounds: int, repeated: int = 0) -> float:
        """Return the ε that has been spent after some rounds.

        Args:
            rounds: number of rounds.
            repeated: number of exchanges that were computed again, with other noise.
        """
        if not rounds and not repeated:
            return 0.0
        rounds = max(rounds, 1)
        return max(
            spent(ledger.after(rounds, repeated), self.delta) for ledger in self.ledgers
        )

    def rounds_within(self, rounds: int, repeated: int = 0) -> int:
        """Return the number of rounds that the budget allows, at most `rounds`."""
        if self.budget is None or self.epsilon_after(rounds, repeated) <= self.budget:
            return rounds
        if self.epsilon_after(1, repeated) > self.budget:
            return 0
        budget = Budget(self.budget, self.delta)
        allowed = [
            1 + count_within(budget, ledger.usual, ledger.before(repeated))
            for ledger in self.ledgers
            if ledger.usual
        ]
        return min(rounds, *allowed)


def spending_of_means(
    multiplier: float,
    opening: int,
    usual: int,
    sampling: Sampling,
    delta: float,
    budget: float | None = None,
    fewest: int = 1,
) -> Spending:
    """Return what a run spends that adds noise to the mean of each exchange.

    All exchanges of a round have the same participants. So k noised means with
    multiplier m are one with multiplier m / √k, of the round's sample (Dong, Roth and
    Su, Gaussian differential privacy, arXiv 1905.02383, Corollary 2).

    Args:
        multiplier: noise multiplier of one exchange.
        opening: number of noised means of the first round.
        usual: number of noised means of every later round.
        sampling: selection of the participants.
        delta: δ.
        budget: largest ε; None without a budget.
        fewest: smallest number of uploads of an exchange, which share the noise; 1 if
            the server adds it.

    Example:
        >>> spending = spending_of_means(10.0, 2, 1, Everyone(), delta=1e-5)
        >>> spending.ledgers[0].opening[GaussianRelease(10.0 / 2**0.5)]
        1
    """

    def release(means: int) -> Mapping[GaussianRelease, int]:
        return {GaussianRelease(multiplier / max(1, means) ** 0.5, sampling): 1}

    # Nothing is known about the sample of a lost round. Devices repeat their noise, so
    # the difference of two sums, over other devices, may have the noise of one alone.
    repeated = {GaussianRelease(multiplier / fewest**0.5, UnknownSampling()): 1}
    ledger = Ledger(release(opening), release(usual), repeated)
    return Spending((ledger,), opening, usual, delta, budget, fewest)


def spending_of_examples(
    noise: ExampleNoise,
    opening: Sequence[Mapping[BatchUse, int]],
    usual: Sequence[Mapping[BatchUse, int]],
    populations: Mapping[Level, int],
) -> Spending:
    """Return what a run spends that adds noise by example.

    k answers of one batch are one answer with multiplier m / √k (`privacy.mixture`).
    Devices have distinct examples, so the device with the fewest decides: fewer
    examples are drawn more often (Choquette-Choo et al., arXiv 2310.15526, Lemma 4.5).

    Args:
        noise: noise of the algorithm.
        opening: uses of batches in each exchange of the first round.
        usual: uses of batches in each exchange of every later round.
        populations: smallest number of examples of a device, for both losses.

    Example:
        >>> use = BatchUse(Level.LOWER, batch_size=10, answers=4)
        >>> spending = spending_of_examples(
        ...     ExampleNoise(clip=1.0, multiplier=2.0),
        ...     opening=[{use: 3}],
        ...     usual=[{use: 3}],
        ...     populations={Level.UPPER: 500, Level.LOWER: 1000},
        ... )
        >>> (ledger,) = spending.ledgers
        >>> ledger.usual  # 4 answers with the multiplier 2
        {GaussianRelease(noise_multiplier=1.0, sampling=PoissonDraws(draws=10,
                         population=1000)): 3}
    """

    def releases(
        level: Level, uses: Mapping[BatchUse, int]
    ) -> Counter[GaussianRelease]:
        counts: Counter[GaussianRelease] = Counter()
        for use, number in uses.items():
            if use.level == level:
                sampling = PoissonDraws(use.batch_size, populations[level])
                multiplier = float(noise.multiplier) / use.answers**0.5
                counts[GaussianRelease(multiplier, sampling)] += number
        return counts

    ledgers = []
    for level in Level:
        first = [releases(level, uses) for uses in opening]
        later = [releases(level, uses) for uses in usual]
        # It is not known which exchange was repeated: the largest counts of any.
        repeated: Counter[GaussianRelease] = Counter()
        for counts in (*first, *later):
            repeated |= counts
        total = sum(first, Counter[GaussianRelease]())
        each = sum(later, Counter[GaussianRelease]())
        if repeated:
            ledgers.append(Ledger(dict(total), dict(each), dict(repeated)))
    return Spending(
        tuple(ledgers), len(opening), len(usual), noise.delta, noise.epsilon
    )


def spending_of(
    job: Job,
    participation: Participation,
    engine: Any,
    weights: Float[np.ndarray, "devices"],
    state: RunState,
    data: DeviceData,
) -> Spending | None:
    """Return what a run spends; None without noise, or with noise from the seed.

    Args:
        job: constant inputs of the engine.
        participation: function that selects the devices of each round.
        engine: engine of the run.
        weights: weights of all devices.
        state: first state of the server and of one device.
        data: data of one device, of which only the form matters.

    Raises:
        ImportError: if dp-accounting is not installed.
        ValueError: if the noise does not protect what the settings publish.
    """
    algorithm, problem = job.algorithm, job.problem
    noise = noise_of(algorithm)
    if noise is None or noise.from_seed:
        return None
    _check_engine(engine)
    # A missing library is reported before the run, not after its first round.
    dp_accounting()
    if isinstance(noise, ExampleNoise):
        opening, usual = exchange_uses(algorithm, problem, state, data)
        return spending_of_examples(noise, opening, usual, populations_of(job.devices))
    fewest = 1
    if isinstance(noise, DeviceNoise):
        fewest = noise.devices
        _check_device_noise(noise, engine, weights, job.cohort_size)
    _refuse_added_phases(algorithm, problem)
    means = len(algorithm.phases(problem))
    return spending_of_means(
        float(noise.multiplier),
        len(algorithm.opening(problem)) or means,
        means,
        sampling_of(participation, engine, weights, state.private),
        noise.delta,
        noise.epsilon,
        fewest,
    )


def exchange_uses(
    algorithm: FederatedAlgorithm,
    problem: BilevelProblem,
    state: RunState,
    data: DeviceData,
) -> tuple[Sequence[Mapping[BatchUse, int]], Sequence[Mapping[BatchUse, int]]]:
    """Return the uses of batches in the exchanges of the first round and of later ones.

    Args:
        algorithm: algorithm with `ExampleNoise`.
        problem: the two losses.
        state: first state of the server and of one device.
        data: data of one device, of which only the form matters.
    """

    def uses_of(phases: tuple[Phase, ...]) -> Sequence[Mapping[BatchUse, int]]:
        known: dict[int, Mapping[BatchUse, int]] = {}
        for phase in phases:
            if id(phase) not in known:  # A repeated phase is one object.
                key = jax.random.key(0)
                known[id(phase)] = batch_uses(
                    phase, state.server, state.private, data, key
                )
        return [known[id(phase)] for phase in phases]

    _refuse_added_phases(algorithm, problem)
    usual = uses_of(algorithm.phases(problem))
    return uses_of(algorithm.opening(problem)) or usual, usual


def populations_of(devices: Devices) -> Mapping[Level, int]:
    """Return the smallest numbers of upper and lower examples of a device.

    Raises:
        ValueError: if the numbers are not known before the run, or if two devices or
            both losses have the same examples: each of them answers with other noise.

    Example:
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> held = [LocalExamples(np.ones(n), np.ones(2 * n)) for n in (30, 20)]
        >>> populations_of(InMemoryDevices(held))[Level.LOWER]
        40
    """
    if isinstance(devices, DevicesWithTerms):
        devices = devices.devices
    if not isinstance(devices, SizedDevices):
        raise ValueError(
            f"ExampleNoise needs the number of examples of every device for ε, but "
            f"{type(devices).__name__} loads devices during the run. Pass "
            "InMemoryDevices."
        )
    copies = devices.find_copies() if isinstance(devices, InMemoryDevices) else None
    if copies is not None:
        raise ValueError(
            "ExampleNoise computes ε for examples that one device holds for one of the "
            f"losses, but the {copies.first} and the {copies.second} have rows in one "
            "array in memory, or are equal, so an example has several noised answers. "
            "Give each example to one device, and either to the upper or to the lower "
            "loss; pass copies of arrays that are not examples."
        )
    sizes = {Level.UPPER: devices.upper_sizes, Level.LOWER: devices.lower_sizes}
    return {level: int(np.min(size)) for level, size in sizes.items()}


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


def _check_engine(engine: Any) -> None:
    """Raise if an engine does not state what ε depends on."""
    if not isinstance(engine, PrivateEngine):
        raise ValueError(
            f"{type(engine).__name__} does not state what ε depends on. Give it the "
            "properties of fedbilevel.engines.PrivateEngine: key_is_secret, "
            "sees_uploads and noised_means. An engine around another one returns the "
            "values of that engine."
        )


def _check_device_noise(
    noise: DeviceNoise,
    engine: PrivateEngine,
    weights: Float[np.ndarray, "devices"],
    cohort_size: int,
) -> None:
    """Raise if the noise of the participants would be less than accounted for."""
    if engine.sees_uploads:
        raise ValueError(
            "DeviceNoise protects a sum of updates, but the server of this federation "
            "sees each of them. Use secure sums (secure_sums of Federation, or of the "
            "table [federation]), or GaussianNoise, which trusts the server."
        )
    if np.any(weights != weights[0]):
        raise ValueError(
            "DeviceNoise needs equal weights of the devices, since each adds the same "
            "noise. Omit weights and give every device examples of both losses, or "
            "use GaussianNoise."
        )
    if cohort_size < noise.devices:
        raise ValueError(
            f"DeviceNoise: devices is {noise.devices}, but the number of participants "
            f"is {cohort_size}, so a mean has less noise than ε is computed for. Lower "
            f"devices to {cohort_size}, or raise the number of participants."
        )


def _refuse_added_phases(
    algorithm: FederatedAlgorithm, problem: BilevelProblem
) -> None:
    """Raise if a wrapper of the algorithm with noise adds phases."""

    def names(layer: FederatedAlgorithm) -> dict[str, None]:
        phases = *layer.opening(problem), *layer.phases(problem)
        return dict.fromkeys(phase.name for phase in phases)

    noised = find_layer(algorithm, Transformed)
    assert noised is not None, "an algorithm with noise has transforms"
    within = names(noised)
    for name in names(algorithm):
        if name not in within:
            raise ValueError(
                f"Phase {name!r} is added around with_transforms, so its uploads have "
                "no noise, and ε would not count them. Pass the algorithm that adds it "
                "to with_transforms."
            )


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
    is_hidden = isinstance(engine, PrivateEngine) and engine.key_is_secret
    # With other weights, a device in the sample changes the shares of all others.
    is_even = bool(np.all(weights == weights[0]))
    # A state shows in which rounds its device participated.
    is_hidden &= not jax.tree.leaves(private)
    if isinstance(participation, UniformSample) and is_hidden and is_even:
        return WithoutReplacement(int(participation.devices), len(weights))
    return UnknownSampling()
