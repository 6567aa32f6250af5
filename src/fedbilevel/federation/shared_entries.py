"""The site rule that several examples influence each entry of x."""

from collections.abc import Collection
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.data.examples import StoredData, StoredExamples, seen_by
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper

POINTS = ((1.0, 0.1), (1.0, 1.0), (0.0, 0.1), (0.0, 1.0))
"""Points at which derivatives are evaluated: factor of the start, and scale of the
random numbers added to it. At the start itself, or where predictions saturate, examples
may have no influence by coincidence."""


def require_shared_entries(
    rules: SiteRules,
    problem: BilevelProblem,
    x: Upper,
    y: Lower,
    data: StoredData,
    levels: Collection[str] = StoredData._fields,
) -> None:
    """Raise if too few of the site's examples influence an entry of x.

    With a weight for each example, for instance, an entry reveals its example to the
    server in batches of any size.

    Args:
        rules: rules of the site.
        problem: upper and lower loss.
        x: start of the upper variable.
        y: start of the lower variable.
        data: data of the site.
        levels: levels of which the site has examples.

    Raises:
        RefusedError: if they are too few; the message names the rule.

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
        fedbilevel.federation.transport.RefusedError: 6 of 6 entries of x are
        influenced by fewer than 5 lower examples of the site, so that uploads reveal
        single examples. Choose a problem whose x is shared by examples, or ask the
        site's operator to lower fewest_per_entry in local/site_rules.toml
    """
    if rules.fewest_per_entry == 1:
        return
    # Of rows by site only its own depends on a site, and weights of sites by theirs.
    x = seen_by(data, x)
    few = dict.fromkeys(levels, 0)
    seen = dict.fromkeys(levels, False)
    for number, (start, size) in enumerate(POINTS):
        keys = jax.random.split(jax.random.key(number), 3)
        point = tuple(
            _near(variable, start, size, key)
            for variable, key in zip((x, y, y), keys, strict=True)
        )
        for level in levels:
            examples = getattr(data, level)
            count = _few(problem, level, examples, rules.fewest_per_entry, *point)
            seen[level] |= count is not None
            few[level] = max(few[level], count or 0)
    for level in levels:
        if not seen[level]:
            raise RefusedError(
                f"the derivatives of the {level} loss with respect to x are not finite "
                f"at {len(POINTS)} points near the start and near zero, so that the "
                "site cannot check fewest_per_entry. Choose another start, or ask the "
                f"site's operator to set fewest_per_entry in local/{RULES} to 1"
            )
        if few[level]:
            total = sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))
            raise RefusedError(
                f"{few[level]} of {total} entries of x are influenced by fewer than "
                f"{rules.fewest_per_entry} {level} examples of the site, so that "
                "uploads reveal single examples. Choose a problem whose x is shared by "
                "examples, or ask the site's operator to lower fewest_per_entry in "
                f"local/{RULES}"
            )


def _few(
    problem: BilevelProblem,
    level: str,
    examples: StoredExamples,
    fewest: int,
    x: Upper,
    y: Lower,
    z: Lower,
) -> int | None:
    """Return the number of entries with too few examples; None if not all is finite."""
    counts, finite = _movers(problem, level, examples, fewest, x, y, z)
    if not finite:
        return None
    few = [jnp.sum((leaf > 0) & (leaf < fewest)) for leaf in jax.tree.leaves(counts)]
    return int(sum(few))


@partial(jax.jit, static_argnames=("problem", "level", "fewest"))
def _movers(
    problem: BilevelProblem,
    level: str,
    examples: StoredExamples,
    fewest: int,
    x: Upper,
    y: Lower,
    z: Lower,
) -> tuple[PyTree, Bool[Array, ""]]:
    """Return the number of examples that influence each entry; whether all is finite.

    A penalty has the same derivative for every example, so an example counts if its
    derivative differs from that of a reference example. If fewer than `fewest` examples
    influence an entry, one of the first `fewest` examples does not.
    """

    def of_row(row: Int[Array, ""]) -> PyTree:
        batch: Batch = jax.tree.map(lambda leaf: leaf[row][None], examples.arrays)
        if level == "upper":
            return problem.upper_gradients(x, y, batch)[0]
        return problem.cross_product(x, y, batch, z)

    first, size = jnp.asarray(examples.offset), jnp.asarray(examples.size)
    rows = first + jnp.arange(fewest, dtype=first.dtype) % size
    references = jax.lax.map(of_row, rows)

    def differs(moved: Array, reference: Array) -> Array:
        scale = jnp.maximum(jnp.abs(moved), jnp.abs(reference))
        return jnp.abs(moved - reference) > 1e-5 * scale

    def count(
        row: Int[Array, ""], before: tuple[PyTree, Bool[Array, ""]]
    ) -> tuple[PyTree, Bool[Array, ""]]:
        counts, finite = before
        moved = of_row(row)
        counts = jax.tree.map(
            lambda total, derivative, reference: (
                total + differs(derivative[None], reference).astype(jnp.int32)
            ),
            counts,
            moved,
            references,
        )
        of_leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(moved)]
        return counts, finite & jnp.all(jnp.stack(of_leaves))

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int32), references)
    initial = zeros, jnp.array(True)
    counts, finite = jax.lax.fori_loop(first, first + size, count, initial)
    return jax.tree.map(lambda leaf: jnp.min(leaf, axis=0), counts), finite


def _near(point: PyTree, start: float, size: float, key: Array) -> PyTree:
    """Return random numbers, around a point or around zero."""
    leaves, structure = jax.tree.flatten(point)
    keys = jax.random.split(key, len(leaves))
    moved = [
        start * leaf
        + size * jax.random.normal(leaf_key, jnp.shape(leaf), jnp.result_type(leaf))
        for leaf, leaf_key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)
