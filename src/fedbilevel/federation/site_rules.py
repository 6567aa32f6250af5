"""The rules that a site holds a server to, set by the site's operator."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fedbilevel.algorithms.protocol import Downlink, Phase, Private
from fedbilevel.data.examples import StoredData
from fedbilevel.engines.costs import smallest_batch
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.transport import RefusedError

RULES = "site_rules.toml"
"""The file of a site's kit, in its directory `local`, with the rules."""
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class SiteRules:
    """The rules that a site holds a server to.

    A server can reconstruct examples from uploads: docs/security.md has the attacks
    behind each number. The defaults are those of a real site.

    Attributes:
        smallest_batch: the fewest examples that any batch of the algorithm may have.
        fewest_examples: the fewest examples that the site must hold for each loss.
        fewest_per_entry: the fewest of its examples that must move an entry of x, if
            any do; an entry that one example moves is that example's own.
        most_exchanges: that the site ever answers, of all runs together, whether their
            directories were removed or not: what a server has read stays read.
        most_rollbacks: how many times in a run the server may go back to an exchange
            that was answered and continue from there with another downlink.
        simulated_draws: whether samples are those of a simulation with the run's seed,
            which the server knows. For rehearsals: a real site draws by its salt.

    Example:
        >>> SiteRules(smallest_batch=256).fewest_examples
        128
        >>> SiteRules(smallest_batch=0)
        Traceback (most recent call last):
        ...
        ValueError: smallest_batch is 0; give a whole number of at least 1.
    """

    smallest_batch: int = 128
    fewest_examples: int = 128
    fewest_per_entry: int = 5
    most_exchanges: int = 1000
    most_rollbacks: int = 20
    simulated_draws: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in ("most_rollbacks", "simulated_draws") else 1
            if value < least:
                raise ValueError(
                    f"{name} is {value}; give a whole number of at least {least}."
                )


REHEARSAL = SiteRules(
    smallest_batch=1,
    fewest_examples=1,
    fewest_per_entry=1,
    most_exchanges=UNBOUNDED,
    most_rollbacks=UNBOUNDED,
    simulated_draws=True,
)
"""No protection, and the numbers of a simulation: for data that are no secret."""


def require_examples(rules: SiteRules, enrolment: Enrolment) -> None:
    """Refuse to take part with too few examples.

    Raises:
        RefusedError: says what to set where.

    Example:
        >>> require_examples(SiteRules(), Enrolment({}, {}, 128, 20))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the site holds 20 lower
        examples, but its rules ask for at least 128. Let it hold more, or let its
        operator lower fewest_examples in local/site_rules.toml
    """
    sizes = {"upper": enrolment.upper_size, "lower": enrolment.lower_size}
    for level, size in sizes.items():
        if size < rules.fewest_examples:
            raise RefusedError(
                f"the site holds {size} {level} examples, but its rules ask for at "
                f"least {rules.fewest_examples}. Let it hold more, or let its operator "
                f"lower fewest_examples in local/{RULES}"
            )


def require_batches(
    rules: SiteRules,
    phases: Iterable[tuple[Phase, Downlink]],
    private: Private,
    data: StoredData,
) -> None:
    """Refuse an algorithm that draws a batch of too few examples.

    Args:
        rules: of the site.
        phases: of the algorithm, each with shapes and types of its downlink.
        private: what a device keeps at first.
        data: of the site.

    Raises:
        RefusedError: says what to set where.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedbilevel.data.examples import StoredExamples
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> problem, one = BilevelProblem(loss, loss), jnp.ones(())
        >>> algorithm = FedBiO(0.1, batch_size=4)
        >>> server, private = algorithm.init(problem, one, one)
        >>> (phase,) = algorithm.phases(problem)
        >>> pair = phase, jax.eval_shape(phase.broadcast, server)
        >>> require_batches(SiteRules(), [pair], private, StoredData(rows, rows))
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: the algorithm draws batches
        of 4, but the site's rules ask for at least 128. Set batch_size (and
        opening_batch_size, if there is one) of [algorithm] to 128 or more, or let the
        site's operator lower smallest_batch in local/site_rules.toml
    """
    for phase, downlink in phases:
        size = smallest_batch(phase, downlink, private, data)
        if size is not None and size < rules.smallest_batch:
            raise RefusedError(
                f"the algorithm draws batches of {size}, but the site's rules ask for "
                f"at least {rules.smallest_batch}. Set batch_size (and "
                "opening_batch_size, if there is one) of [algorithm] to "
                f"{rules.smallest_batch} or more, or let the site's operator lower "
                f"smallest_batch in local/{RULES}"
            )
