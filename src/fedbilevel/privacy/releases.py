"""Releases: noised sums, and the sampling of the devices or examples in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

from fedbilevel.mathematics.settings import Count, Range, SettingError, check_ranges
from fedbilevel.privacy.poisson import poisson_table

SMALLEST_SHARE = 1e-30
"""Smallest probability of a number of occurrences that is listed on its own."""


@dataclass(frozen=True)
class Everyone:
    """One term of every device in the sum.

    Example:
        >>> Everyone().occurrences()
        {1: 1.0}
    """

    largest: ClassVar[int] = 1
    """The largest number of terms of one device in the sum."""

    def occurrences(self) -> Mapping[int, float]:
        """Return the probabilities of the numbers of terms of one device."""
        return {1: 1.0}


@dataclass(frozen=True)
class UnknownSampling:
    """At most one term of a device in the sum, by an unknown or a visible selection.

    ε is that of `Everyone`, without amplification. This is the sampling of
    volunteers, of devices that drop out, and of samples whose seed is public. The
    selection may not depend on the data of the device that is to be protected.

    Example:
        >>> UnknownSampling().occurrences()
        {1: 1.0}
    """

    largest: ClassVar[int] = 1
    """The largest number of terms of one device in the sum."""

    def occurrences(self) -> Mapping[int, float]:
        """Return the probabilities of the numbers of terms: the worst case."""
        return {1: 1.0}


@dataclass(frozen=True)
class WithoutReplacement:
    """A uniform sample of a fixed number of distinct devices.

    The amplification is valid only if nobody who sees the release knows the sample:
    with a public seed use `UnknownSampling`.

    Attributes:
        sample: number of devices in the sample.
        population: number of devices that the sample is drawn from.

    Example:
        >>> WithoutReplacement(sample=10, population=1000).occurrences()
        {1: 0.01}
    """

    sample: Count
    population: Count
    largest: ClassVar[int] = 1
    """The largest number of terms of one device in the sum."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.sample > self.population:
            raise SettingError(
                "sample",
                f"give at most the population, {self.population}, not {self.sample}.",
                f"WithoutReplacement: sample is {self.sample}, expected at most the "
                f"population, {self.population}.",
            )

    def occurrences(self) -> Mapping[int, float]:
        """Return the probabilities of the numbers of terms of one device."""
        return {1: self.sample / self.population}


@dataclass(frozen=True)
class WithReplacement:
    """Independent uniform draws, as `Examples.draw` draws a batch.

    One example may be drawn several times. Nobody who sees the release may know
    the draws.

    Attributes:
        draws: number of draws, the batch size.
        population: number of examples of the device.

    Example:
        >>> shares = WithReplacement(draws=2, population=10).occurrences()
        >>> {number: round(share, 6) for number, share in shares.items()}
        {1: 0.18, 2: 0.01}
    """

    draws: Count
    population: Count

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def largest(self) -> int:
        """The largest number of terms of one example in the sum."""
        return self.draws

    def occurrences(self) -> Mapping[int, float]:
        """Return the probabilities of the numbers of terms of one example.

        Numbers that are improbable are replaced by the largest number.
        """
        # SciPy is imported when noise is accounted for: every run imports this module.
        from scipy.stats import binom

        return _occurrences(binom(self.draws, 1.0 / self.population), self.largest)


@dataclass(frozen=True)
class PoissonDraws:
    """Independent uniform draws whose number is Poisson distributed.

    `ExampleNoise` draws batches so: the numbers of occurrences of two examples are
    independent, which a fixed number of draws (`WithReplacement`) does not have. ε is
    then much smaller. Nobody who sees the release may know the draws.

    Attributes:
        draws: mean number of draws, the batch size.
        population: number of examples of the device.

    References:
        Choquette-Choo, Ganesh, Steinke and Thakurta, Privacy Amplification for Matrix
        Mechanisms, arXiv 2310.15526.

    Example:
        >>> shares = PoissonDraws(draws=2, population=10).occurrences()
        >>> {number: round(shares[number], 6) for number in (1, 2, 3)}
        {1: 0.163746, 2: 0.016375, 3: 0.001092}
    """

    draws: Count
    population: Count

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def largest(self) -> int:
        """The largest number of terms of one example in the sum."""
        return poisson_table(self.draws).capacity

    def occurrences(self) -> Mapping[int, float]:
        """Return the probabilities of the numbers of terms of one example.

        Numbers that are improbable are replaced by the largest number.
        """
        from scipy.stats import poisson

        return _occurrences(poisson(self.draws / self.population), self.largest)


def _occurrences(distribution: Any, largest: int) -> Mapping[int, float]:
    """Return the probabilities of the numbers from 1 to the largest."""
    result = {}
    for number in range(1, largest + 1):
        rest = float(distribution.sf(number - 1))
        if rest < SMALLEST_SHARE:
            # The largest number stands for all of the rest, which is pessimistic.
            result[largest] = rest
            break
        result[number] = float(distribution.pmf(number))
    return result


Sampling: TypeAlias = (
    Everyone | UnknownSampling | WithoutReplacement | WithReplacement | PoissonDraws
)
"""The selection of the devices or examples of a release."""


@dataclass(frozen=True)
class GaussianRelease:
    """A sum of clipped terms with Gaussian noise, whose result is published.

    Attributes:
        noise_multiplier: standard deviation of the noise, divided by the largest norm
            of one term of the sum (the clip, times the largest weight). 0 is no noise.
        sampling: the selection of the terms.

    Example:
        >>> release = GaussianRelease(1.1, WithoutReplacement(10, population=1000))
        >>> release.noise_multiplier
        1.1
        >>> GaussianRelease(-1.0)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: GaussianRelease:
        noise_multiplier is -1.0, expected a number, at least 0.
    """

    noise_multiplier: Annotated[float, Range(at_least=0.0)]
    sampling: Sampling = Everyone()

    def __post_init__(self) -> None:
        check_ranges(self)
        # A number of NumPy or JAX is not hashable, or prints differently.
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        if not isinstance(self.sampling, Sampling):
            raise TypeError(
                f"sampling of GaussianRelease is {self.sampling!r}. Pass Everyone(), "
                "WithoutReplacement(...), WithReplacement(...), PoissonDraws(...) or "
                "UnknownSampling()."
            )
