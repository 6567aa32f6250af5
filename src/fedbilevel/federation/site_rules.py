"""The rules of a site: limits on tasks, set by the site's operator."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fedbilevel.algorithms.protocol import Downlink, Phase, Private
from fedbilevel.data.examples import StoredData
from fedbilevel.engines.costs import smallest_batch
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.transport import RefusedError
from fedbilevel.plurals import count_noun
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.transformed import fixed_point_of, noise_of

RULES = "site_rules.toml"
"""Name of the rules file in the directory `local` of a site's kit."""
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class SiteRules:
    """The limits within which a site answers tasks.

    A server can reconstruct examples from uploads: docs/security.md describes the
    attack behind each limit. The defaults are for sites with confidential data.

    Attributes:
        smallest_batch: minimum size of every batch that the algorithm draws.
        fewest_examples: minimum number of the site's examples for each loss.
        fewest_per_entry: minimum number of the site's examples that influence an entry
            of x, if any do; an entry that one example influences reveals it.
        most_exchanges: maximum number of exchanges that the site ever answers, in all
            runs together. Removing a run directory does not reset it, because the
            server keeps the answers.
        most_rollbacks: maximum number of times in a run that the server may go back to
            an answered exchange and continue with another downlink.
        simulated_draws: whether samples follow from the run's seed, which the server
            knows, as in a simulation. Only for rehearsals: by default samples
            follow from the site's secret salt.
        secure_sums: whether the site refuses any exchange in which the server would
            see its upload rather than a sum.
        smallest_roster: minimum number of sites of an exchange with secure sums.
        smallest_example_noise: minimum multiplier of `ExampleNoise`; with 0 the site
            also accepts algorithms without noise.

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
    simulated_draws: bool = False
    secure_sums: bool = False
    smallest_roster: int = 3
    smallest_example_noise: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            may_be_zero = name == "most_rollbacks" or type(value) is not int
            least = 0 if may_be_zero else 1
            # NaN is not at least 0 either.
            if not value >= least:
                number = "a number" if type(value) is float else "an integer"
                raise ValueError(
                    f"{name} is {value}; give {number} of at least {least}."
                )
        if self.smallest_example_noise and self.simulated_draws:
            raise ValueError(
                f"smallest_example_noise is {self.smallest_example_noise:g}, but with "
                "simulated_draws the server knows the noise; set simulated_draws to "
                "false."
            )


REHEARSAL = SiteRules(
    smallest_batch=1,
    fewest_examples=1,
    fewest_per_entry=1,
    most_exchanges=UNBOUNDED,
    most_rollbacks=UNBOUNDED,
    simulated_draws=True,
    smallest_roster=2,
)
"""Rules without protection, with the samples of a simulation: for public data."""


def require_examples(rules: SiteRules, enrolment: Enrolment) -> None:
    """Raise if the site has too few examples.

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
    for level, size in sizes.items():
        if size < rules.fewest_examples:
            raise RefusedError(
                f"the site has {count_noun(size, f'{level} example')}, but its rules "
                f"require at least {rules.fewest_examples}. Add examples, or ask its "
                f"operator to lower fewest_examples in local/{RULES}"
            )


def require_batches(
    rules: SiteRules,
    phases: Iterable[tuple[Phase, Downlink]],
    private: Private,
    data: StoredData,
) -> None:
    """Raise if the algorithm draws batches that are too small.

    Args:
        rules: rules of the site.
        phases: phases of the algorithm, each with shapes and types of its downlink.
        private: first device state.
        data: data of the site.

    Raises:
        RefusedError: if it does; the message names the rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel.data.examples import StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> problem, start = BilevelProblem(loss, loss), jnp.ones(())
        >>> algorithm = FedBiO(0.1, batch_size=4)
        >>> server, private = algorithm.init(problem, start, start)
        >>> (phase,) = algorithm.phases(problem)
        >>> pair = phase, jax.eval_shape(phase.broadcast, server)
        >>> require_batches(SiteRules(), [pair], private, StoredData(rows, rows))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the algorithm draws batches
        of 4, but the site's rules require at least 128. Set batch_size (and
        initial_batch_size, if there is one) of [algorithm] to 128 or more, or ask the
        site's operator to lower smallest_batch in local/site_rules.toml
    """
    for phase, downlink in phases:
        size = smallest_batch(phase, downlink, private, data)
        if size is not None and size < rules.smallest_batch:
            raise RefusedError(
                f"the algorithm draws batches of {size}, but the site's rules require "
                f"at least {rules.smallest_batch}. Set batch_size (and "
                "initial_batch_size, if there is one) of [algorithm] to "
                f"{rules.smallest_batch} or more, or ask the site's operator to lower "
                f"smallest_batch in local/{RULES}"
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
