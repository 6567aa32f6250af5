"""The rules that a site holds a server to, set by the site's operator."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import Downlink, Phase, Private
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.accounting import smallest_batch
from fedbilevel.engines.federation.enrolment import Enrolment
from fedbilevel.engines.federation.messages import RefusedError
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper

RULES = "site_rules.toml"
"""The file of a site's kit, in its folder `local`, with the rules."""
UNBOUNDED = 2**31 - 1
NEARBY = 0.1
"""Size of the random numbers added to x and y where entries are tried: at the start
examples may have no influence by accident."""


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
        most_exchanges: that the site answers, of all runs together that its kit keeps
            folders of; an operator gives those of a finished run free by removing its
            folder.
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
        fedbilevel.engines.federation.messages.RefusedError: the site holds 20 lower
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
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> from fedbilevel import FedBiO
        >>> problem, one = BilevelProblem(loss, loss), jnp.ones(())
        >>> algorithm = FedBiO(0.1, batch_size=4)
        >>> server, private = algorithm.init(problem, one, one)
        >>> (phase,) = algorithm.phases(problem)
        >>> pair = phase, jax.eval_shape(phase.broadcast, server)
        >>> require_batches(SiteRules(), [pair], private, StoredData(rows, rows))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.federation.messages.RefusedError: the algorithm draws batches
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


def require_shared_entries(
    rules: SiteRules, problem: BilevelProblem, x: Upper, y: Lower, data: StoredData
) -> None:
    """Refuse an x with entries that too few of the site's examples move.

    Such as a weight for each example: what a server learns of that entry, it learns of
    that example, whatever batch it was drawn in.

    Args:
        rules: of the site.
        problem: the two losses.
        x: where the upper variable starts.
        y: where the lower variable starts.
        data: of the site.

    Raises:
        RefusedError: says what to set where.

    Example:
        >>> upper = lambda x, y, batch: jnp.mean((y - batch) ** 2)
        >>> lower = lambda x, y, batch: jnp.mean(x[batch] * (y - 1.0) ** 2)
        >>> numbers = StoredExamples(jnp.arange(6), jnp.array(0), jnp.array(6))
        >>> require_shared_entries(
        ...     SiteRules(), BilevelProblem(upper, lower), jnp.ones(6), jnp.zeros(()),
        ...     StoredData(numbers, numbers),
        ... )
        Traceback (most recent call last):
        ...
        fedbilevel.engines.federation.messages.RefusedError: 6 of 6 entries of x are
        moved by fewer than 5 lower examples of the site, so that uploads tell of each
        of them. Choose a problem whose x is shared by examples, or let the site's
        operator lower fewest_per_entry in local/site_rules.toml
    """
    if rules.fewest_per_entry == 1:
        return
    key_x, key_y, key_z = jax.random.split(jax.random.key(0), 3)
    x, y, z = _near(x, key_x), _near(y, key_y), _near(y, key_z)

    def upper(batch: Batch) -> Upper:
        return problem.upper_gradients(x, y, batch)[0]

    def lower(batch: Batch) -> Upper:
        return problem.cross_product(x, y, batch, z)

    for level, derivative in (("upper", upper), ("lower", lower)):
        few = [
            jnp.sum((counts > 0) & (counts < rules.fewest_per_entry))
            for counts in jax.tree.leaves(
                _movers(getattr(data, level), derivative, rules.fewest_per_entry)
            )
        ]
        count = int(sum(few))
        if count:
            total = sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))
            raise RefusedError(
                f"{count} of {total} entries of x are moved by fewer than "
                f"{rules.fewest_per_entry} {level} examples of the site, so that "
                "uploads tell of each of them. Choose a problem whose x is shared by "
                "examples, or let the site's operator lower fewest_per_entry in "
                f"local/{RULES}"
            )


def _movers(
    examples: StoredExamples, derivative: Callable[[Batch], Upper], fewest: int
) -> PyTree:
    """Return for each entry how many examples move it, fewer than all.

    A penalty moves an entry by the same amount for every example, so an example counts
    if it moves the entry otherwise than a reference example does. Of an entry that
    fewer than `fewest` examples move, one of the first `fewest` is no mover.
    """
    first, size = int(examples.offset), int(examples.size)

    def of_row(row: Int[Array, ""]) -> PyTree:
        return derivative(jax.tree.map(lambda leaf: leaf[row][None], examples.arrays))

    rows = jnp.arange(first, first + size)
    references = jax.lax.map(of_row, rows[:fewest])

    def differs(moved: Array, reference: Array) -> Array:
        scale = jnp.maximum(jnp.abs(moved), jnp.abs(reference))
        return jnp.abs(moved - reference) > 1e-5 * scale

    def count(counts: PyTree, row: Int[Array, ""]) -> tuple[PyTree, None]:
        moved = of_row(row)
        return jax.tree.map(
            lambda total, one, reference: (
                total + differs(one[None], reference).astype(jnp.int32)
            ),
            counts,
            moved,
            references,
        ), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int32), references)
    counts, _ = jax.jit(lambda: jax.lax.scan(count, zeros, rows))()
    return jax.tree.map(lambda leaf: jnp.min(leaf, axis=0), counts)


def _near(point: PyTree, key: Array) -> PyTree:
    leaves, structure = jax.tree.flatten(point)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + NEARBY * jax.random.normal(one, jnp.shape(leaf), jnp.result_type(leaf))
        for leaf, one in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)
