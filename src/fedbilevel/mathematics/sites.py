"""Parts of x with numbers of every site: rows by site, and weights of sites.

The losses of a site take x with each part by site replaced by what the site sees of it,
such as its own row.
"""

from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import Upper

SiteNumber: TypeAlias = Int[Array | np.ndarray, ""]
"""The number of a site, which may be traced."""


@runtime_checkable
class BySite(Protocol):
    """A part of x with numbers of every site: a pytree that shows each site its own."""

    def of_site(self, number: SiteNumber) -> PyTree:
        """Return the part that the losses of a site take in place of all rows."""

    def pull_back(self, number: SiteNumber, gradient: PyTree) -> "BySite":
        """Return a gradient in `of_site(number)` as a gradient in all rows."""


class SiteRows(NamedTuple):
    """Rows of x by site: the losses of site k take row k in their place.

    Attributes:
        rows: tree of arrays with one row for each site.

    Example:
        >>> x = {"bias": SiteRows(np.array([1.0, 5.0])), "penalty": 0.1}
        >>> view_of_site(x, np.array(1))
        {'bias': Array(5., dtype=float32), 'penalty': 0.1}
    """

    rows: PyTree

    def of_site(self, number: SiteNumber) -> PyTree:
        """Return the row of a site."""
        return jax.tree.map(lambda leaf: _row(leaf, number), self.rows)

    def pull_back(self, number: SiteNumber, gradient: PyTree) -> "SiteRows":
        """Return the gradient in the row of a site, with zeros in all other rows."""

        def rows(leaf: Array, row: Array) -> Array:
            is_own = _is_own(leaf, number).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return arrays.where(is_own, row[None], 0.0)

        return SiteRows(jax.tree.map(rows, self.rows, gradient))


class SiteWeights(NamedTuple):
    """Weights of sites with mean 1: the losses of site k take K · softmax(logits)_k.

    The mean of K losses with these weights is a weighted mean. If the logits are the
    logarithms of the numbers of examples, the weights are proportional to them.

    Attributes:
        logits: one number for each site.

    Example:
        >>> weights = SiteWeights(np.log([1.0, 3.0]))
        >>> [round(float(weights.of_site(np.array(site))), 6) for site in (0, 1)]
        [0.5, 1.5]
    """

    logits: Float[Array | np.ndarray, "sites"]

    def all_weights(self) -> Float[Array, "sites"]:
        """Return the weights of all sites."""
        logits: Any = self.logits
        raised = arrays.exp(logits - logits.max())
        weights: Float[Array, "sites"] = len(logits) * raised / raised.sum()
        return weights

    def of_site(self, number: SiteNumber) -> Float[Array, ""]:
        """Return the weight of a site."""
        weight: Float[Array, ""] = _row(self.all_weights(), number)
        return weight

    def pull_back(
        self, number: SiteNumber, gradient: Float[Array, ""]
    ) -> "SiteWeights":
        """Return a gradient in the weight of a site as one in all logits.

        For w = K softmax(l), ∂w_k / ∂l_j = w_k (1[j = k] − w_j / K).
        """
        weights = self.all_weights()
        is_own = arrays.cast(_is_own(weights, number), weights)
        change = is_own - weights / len(weights)
        return SiteWeights(gradient * _row(weights, number) * change)


def parts_by_site(x: Upper) -> list[tuple[str, BySite]]:
    """Return the parts of x with numbers of every site, each with its path.

    Example:
        >>> [path for path, _ in parts_by_site({"a": SiteWeights(np.zeros(2)), "b": 1})]
        ["['a']"]
    """
    leaves = jax.tree_util.tree_leaves_with_path(x, is_leaf=_is_by_site)
    return [
        (jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_by_site(leaf)
    ]


def view_of_site(x: Upper, number: SiteNumber) -> Upper:
    """Return x as the losses of a site take it."""

    def show(part: Any) -> Any:
        return part.of_site(number) if _is_by_site(part) else part

    return jax.tree.map(show, x, is_leaf=_is_by_site)


def in_all_rows(x: Upper, number: SiteNumber, gradient: Upper) -> Upper:
    """Return a gradient in the view of a site as a gradient in x."""

    def spread(part: Any, gradient: PyTree) -> Any:
        return part.pull_back(number, gradient) if _is_by_site(part) else gradient

    return jax.tree.map(spread, x, gradient, is_leaf=_is_by_site)


def _is_by_site(part: Any) -> bool:
    return isinstance(part, BySite)


def _row(leaf: Any, number: SiteNumber) -> Any:
    return arrays.namespace(leaf, number).asarray(leaf)[number]


def _is_own(leaf: Any, number: SiteNumber) -> Any:
    """Return a mask of the rows of an array: True for the row of the site."""
    xp = arrays.namespace(leaf)
    number = xp.asarray(number)
    place = {"device": leaf.device} if arrays.is_tensor(leaf) else {}
    return xp.arange(len(leaf), dtype=number.dtype, **place) == number
