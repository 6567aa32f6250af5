"""The rules of a site: limits on tasks, set by the site's operator."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fedbilevel.engines.costs import WorkSizes
from fedbilevel.federation.computation_timeout import DEFAULT_SECONDS
from fedbilevel.federation.computation_timeout import RULES as RULES
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.transport import RefusedError
from fedbilevel.plurals import count_noun
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.transformed import fixed_point_of, noise_of

UNBOUNDED = 2**31 - 1
MAY_BE_ZERO = "most_rollbacks", "most_second_sums"
"""Integers that may be 0."""


@dataclass(frozen=True)
class SiteRules:
    """The limits within which a site answers tasks.

    A server can reconstruct examples from uploads: docs/security.md describes the
    attack behind each limit. The defaults are for sites with confidential data.

    Attributes:
        smallest_batch: minimum size of every batch that the algorithm draws. It does
            not apply to an algorithm whose noise by example the rules demand: the noise
            hides an example in a batch of any size.
        fewest_examples: minimum number of the site's examples for each loss of which it
            has any.
        fewest_per_entry: minimum number of the site's examples that influence an entry
            of x, if any do; an entry that one example influences reveals it.
        most_exchanges: maximum number of exchanges that the site ever answers, in all
            runs together. Removing a run directory does not reset it, because the
            server keeps the answers.
        most_rollbacks: maximum number of times in a run that the server may go back to
            an answered exchange and continue with another downlink, as a server does
            that resumes from a checkpoint. The site then draws other samples and noise.
        most_second_sums: maximum number of secure sums in a run that the site signs
            although it has signed another one of the same uploads. With 0 the site
            participates only if so many other sites have signed this rule that no sums
            of an exchange show its upload.
        simulated_draws: whether samples follow from the run's seed, which the server
            knows, as in a simulation. Only for rehearsals: by default samples
            follow from the site's secret salt.
        secure_sums: whether the site refuses any exchange in which the server would
            see its upload rather than a sum.
        smallest_roster: minimum number of sites of an exchange with secure sums.
        smallest_example_noise: minimum multiplier of `ExampleNoise`; with 0 the site
            also accepts algorithms without noise.
        largest_batch: maximum number of examples that the algorithm draws at once.
        most_local_steps: maximum number of times that a computation is repeated in an
            exchange: local steps, times the lengths of the loops within a step.
        most_seconds: seconds after which a computation of the site is killed, and the
            maximum timeout of an exchange.
        largest_epsilon: maximum ε by example that the site's answers spend, in all runs
            together. Below infinity the site refuses algorithms without `ExampleNoise`.
        delta: δ of `largest_epsilon`, below 1 / number of examples.

    Example:
        >>> SiteRules(smallest_batch=256).fewest_examples
        128
        >>> SiteRules(smallest_batch=0)
        Traceback (most recent call last):
        ...
        ValueError: smallest_batch is 0; give an integer of at least 1.
    """

    smallest_batch: int = 128
    fewest_examples: int = 128
    fewest_per_entry: int = 5
    most_exchanges: int = 1000
    most_rollbacks: int = 20
    most_second_sums: int = 0
    simulated_draws: bool = False
    secure_sums: bool = False
    smallest_roster: int = 3
    smallest_example_noise: float = 0.0
    largest_batch: int = 10_000
    most_local_steps: int = 100_000
    most_seconds: int = DEFAULT_SECONDS
    largest_epsilon: float = math.inf
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            may_be_zero = name in MAY_BE_ZERO or type(value) is not int
            least = 0 if may_be_zero else 1
            # NaN is not at least 0 either.
            if not value >= least:
                number = "a number" if type(value) is float else "an integer"
                raise ValueError(
                    f"{name} is {value}; give {number} of at least {least}."
                )
        if not self.largest_epsilon > 0 or not 0 < self.delta < 1:
            raise ValueError(
                f"largest_epsilon is {self.largest_epsilon:g} and delta is "
                f"{self.delta:g}; give a largest_epsilon above 0 (inf for no limit) "
                "and a delta above 0 and below 1."
            )
        if self.requires_noise and self.simulated_draws:
            raise ValueError(
                f"smallest_example_noise is {self.smallest_example_noise:g} and "
                f"largest_epsilon is {self.largest_epsilon:g}, but with "
                "simulated_draws the server knows the noise; set simulated_draws to "
                "false."
            )

    @property
    def requires_noise(self) -> bool:
        """True if the site refuses algorithms without noise by example."""
        return self.smallest_example_noise > 0 or math.isfinite(self.largest_epsilon)


REHEARSAL = SiteRules(
    smallest_batch=1,
    fewest_examples=1,
    fewest_per_entry=1,
    most_exchanges=UNBOUNDED,
    most_rollbacks=UNBOUNDED,
    most_second_sums=UNBOUNDED,
    simulated_draws=True,
    smallest_roster=2,
    largest_batch=UNBOUNDED,
    most_local_steps=UNBOUNDED,
    most_seconds=UNBOUNDED,
)
"""Rules without protection, with the samples of a simulation: for public data."""


def require_examples(rules: SiteRules, enrolment: Enrolment) -> None:
    """Raise if the site has too few examples of a level that it has.

    Raises:
        RefusedError: if it has; the message names the rule.

    Example:
        >>> require_examples(SiteRules(), Enrolment({}, {}, 128, 20))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site has 20 lower
        examples, but its rules require at least 128. Add examples, or ask its
        operator to lower fewest_examples in local/site_rules.toml
    """
    sizes = {"upper": enrolment.upper_size, "lower": enrolment.lower_size}
    for level in enrolment.levels:
        size = sizes[level]
        if size < rules.fewest_examples:
            raise RefusedError(
                f"the site has {count_noun(size, f'{level} example')}, but its rules "
                f"require at least {rules.fewest_examples}. Add examples, or ask its "
                f"operator to lower fewest_examples in local/{RULES}"
            )


def require_work(rules: SiteRules, sizes: Iterable[WorkSizes]) -> None:
    """Raise if the algorithm draws batches of a wrong size, or repeats too much.

    Args:
        rules: rules of the site.
        sizes: sizes of the site's work in each phase (`work_sizes`).

    Raises:
        RefusedError: if it does; the message names the rule.

    Example:
        >>> require_work(SiteRules(), [WorkSizes(4, 4, 1)])
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the algorithm draws batches
        of 4, but the site's rules require at least 128. Set batch_size (and
        initial_batch_size, if there is one) of [algorithm] to 128 or more, or ask the
        site's operator to lower smallest_batch in local/site_rules.toml
        >>> require_work(SiteRules(), [WorkSizes(128, 128, 1_000_000)])
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the algorithm repeats a
        computation 1000000 times in an exchange, but the site's rules allow 100000. Set
        fewer local_steps (or steps and terms within a step) in [algorithm], or ask the
        site's operator to raise most_local_steps in local/site_rules.toml
    """
    # Noise by example protects smaller batches better than a sum over many examples.
    smallest = 0 if rules.requires_noise else rules.smallest_batch
    for batch, drawn, steps in sizes:
        if batch is not None and batch < smallest:
            raise RefusedError(
                f"the algorithm draws batches of {batch}, but the site's rules require "
                f"at least {rules.smallest_batch}. Set batch_size (and "
                "initial_batch_size, if there is one) of [algorithm] to "
                f"{rules.smallest_batch} or more, or ask the site's operator to lower "
                f"smallest_batch in local/{RULES}"
            )
        if drawn > rules.largest_batch:
            raise RefusedError(
                f"the algorithm draws {drawn} examples at once, but the site's rules "
                f"allow {rules.largest_batch}. Set a smaller batch_size (or fewer "
                "terms, whose batches are drawn together) in [algorithm], or ask the "
                f"site's operator to raise largest_batch in local/{RULES}"
            )
        if steps > rules.most_local_steps:
            raise RefusedError(
                f"the algorithm repeats a computation {steps} times in an exchange, "
                f"but the site's rules allow {rules.most_local_steps}. Set fewer "
                "local_steps (or steps and terms within a step) in [algorithm], or ask "
                f"the site's operator to raise most_local_steps in local/{RULES}"
            )


def require_timeout(rules: SiteRules, timeout: float) -> None:
    """Raise if the timeout of an exchange is longer than a computation may take.

    Args:
        rules: rules of the site.
        timeout: seconds that the server waits for an answer.

    Raises:
        RefusedError: if it is; the message names the rule.

    Example:
        >>> require_timeout(SiteRules(), 1e9)
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: an exchange may take 1e+09
        seconds, but the site ends a computation after 3600. Set timeout of [federation]
        to 3600 or less, or ask the site's operator to raise most_seconds in
        local/site_rules.toml
    """
    # NaN is not at most the limit either.
    if not timeout <= rules.most_seconds:
        raise RefusedError(
            f"an exchange may take {timeout:g} seconds, but the site ends a "
            f"computation after {rules.most_seconds}. Set timeout of [federation] to "
            f"{rules.most_seconds} or less, or ask the site's operator to raise "
            f"most_seconds in local/{RULES}"
        )


PLAIN = (
    "the server would see this site's upload, but the site allows secure sums "
    f"only (secure_sums = true in its local/{RULES}). Set secure_sums = true in "
    "[federation], or ask its operator to change the rule"
)
"""The reason why a site refuses a plain task."""


def require_secure(rules: SiteRules, has_identity: bool, algorithm: object) -> None:
    """Raise if the rules demand secure sums, but the run has none.

    Args:
        rules: rules of the site.
        has_identity: whether the site was given its certificate for secure sums.
        algorithm: algorithm with its transforms.

    Raises:
        RefusedError: if they do; the message names the rule.

    Example:
        >>> from fedbilevel import FedBiO
        >>> require_secure(SiteRules(), False, FedBiO(0.1))
        >>> require_secure(SiteRules(secure_sums=True), False, FedBiO(0.1))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the server would see this site's
        upload, but the site allows secure sums only (secure_sums = true in its
        local/site_rules.toml). Set secure_sums = true in [federation], or ask its
        operator to change the rule
    """
    if rules.secure_sums and not (has_identity and fixed_point_of(algorithm)):
        raise RefusedError(PLAIN)


def require_noise(rules: SiteRules, algorithm: object) -> None:
    """Raise if the rules demand more noise by example than an algorithm adds.

    Args:
        rules: rules of the site.
        algorithm: algorithm with its transforms.

    Raises:
        RefusedError: if they do; the message names the rule.

    Example:
        >>> from fedbilevel import FedBiO
        >>> require_noise(SiteRules(), FedBiO(0.1))
        >>> require_noise(SiteRules(smallest_example_noise=1.5), FedBiO(0.1))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the algorithm adds no noise by
        example, but the site's rules require a multiplier of at least 1.5. Set
        example_clip and example_noise = 1.5 or more in [transforms], or ask the site's
        operator to lower smallest_example_noise in local/site_rules.toml
    """
    noise = noise_of(algorithm)
    multiplier = float(noise.multiplier) if isinstance(noise, ExampleNoise) else 0.0
    least = rules.smallest_example_noise
    if not multiplier and math.isfinite(rules.largest_epsilon):
        raise RefusedError(
            "the algorithm adds no noise by example, so ε has no bound, but the site's "
            f"rules allow at most {rules.largest_epsilon:g}. Set example_clip and "
            "example_noise in [transforms] (fedbilevel noise gives it for an ε), "
            f"or ask the site's operator to raise largest_epsilon in local/{RULES}"
        )
    if multiplier < least:
        added = (
            f"noise with the multiplier {multiplier:g}" if multiplier else "no noise"
        )
        raise RefusedError(
            f"the algorithm adds {added} by example, but the site's rules require a "
            f"multiplier of at least {least:g}. Set example_clip and example_noise = "
            f"{least:g} or more in [transforms], or ask the site's operator to lower "
            f"smallest_example_noise in local/{RULES}"
        )
