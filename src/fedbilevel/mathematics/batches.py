"""Batches with more than rows: the site of a batch, and all examples as one batch.

The losses of site k are a_k f(x_k, y; batch) and b_k g(x_k, y; batch), where x_k is x
as the site sees it, and a_k and b_k are its factors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import (
    Batch,
    BilevelProblem,
    Lower,
    LowerProducts,
    Upper,
)
from fedbilevel.mathematics.sites import in_all_rows, parts_by_site, view_of_site

PART = 32
"""Examples of a `WholeBatch` that are evaluated at once."""


class SiteTerm(NamedTuple):
    """The part of a site in the mean of a loss over sites.

    Attributes:
        number: number of the site.
        factor: factor of its loss; 0 if the site has no examples of it.
    """

    number: Int[Array | np.ndarray, "*sites"]
    factor: Float[Array | np.ndarray, "*sites"]


class SiteBatch(NamedTuple):
    """A batch of a site.

    Attributes:
        rows: examples, as the losses of a problem take them.
        term: the site's number and factor, repeated for each example.
    """

    rows: Batch
    term: SiteTerm


@runtime_checkable
class Averaged(Protocol):
    """Examples over which functions of batches can be averaged."""

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean of a function of batches over all examples."""


class WholeBatch(NamedTuple):
    """All examples of a device as one batch, which is evaluated in parts.

    Attributes:
        examples: the examples.
    """

    examples: Averaged


def for_devices(problem: BilevelProblem) -> BilevelProblem:
    """Return the problem with losses and oracles that take all batches of devices.

    These are plain rows, a `SiteBatch` or a `WholeBatch`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.mathematics.sites import SiteRows
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> problem = for_devices(BilevelProblem(loss, loss))
        >>> term = SiteTerm(np.array([1, 1]), np.array([0.5, 0.5]))
        >>> x, batch = SiteRows(jnp.array([0.0, 3.0])), SiteBatch(np.ones(2), term)
        >>> float(problem.lower_loss(x, 1.0, batch))
        2.0
        >>> problem.lower_gradient_x(x, 1.0, batch).rows.tolist()
        [0.0, 2.0]
    """
    if isinstance(problem.lower_loss, _OnDevice):
        return problem
    products = problem.products
    view = problem.view
    return BilevelProblem(
        _OnDevice(problem.upper_loss, None),
        _OnDevice(problem.lower_loss, None),
        upper_gradients=_OnDevice(problem.upper_gradients, (True, False)),
        lower_gradient=_OnDevice(problem.lower_gradient, False),
        lower_gradient_x=_OnDevice(problem.lower_gradient_x, True),
        hessian_product=_OnDevice(problem.hessian_product, False),
        cross_product=_OnDevice(problem.cross_product, True),
        products=products and _ProductsOnDevice(products),
        view=view and for_devices(view),
    )


@dataclass(frozen=True)
class _OnDevice:
    """A loss or an oracle of the losses of a site.

    Attributes:
        function: function of (x, y, batch, *vectors).
        in_x: whether each result is a derivative in x; None for a loss.
    """

    function: Callable[..., Any]
    in_x: bool | tuple[bool, ...] | None

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, by which two runs are compared."""
        return self.function

    def __call__(self, x: Upper, y: Lower, batch: Batch, /, *vectors: Lower) -> Any:
        if isinstance(batch, WholeBatch):
            return batch.examples.mean(lambda part: self(x, y, part, *vectors), PART)
        if not isinstance(batch, SiteBatch):
            _require_no_sites(x)
            return self.function(x, y, batch, *vectors)
        term = _first(batch.term)
        view = view_of_site(x, term.number)
        return _in_mean(
            x, term, self.function(view, y, batch.rows, *vectors), self.in_x
        )


@dataclass(frozen=True)
class _ProductsOnDevice:
    """`BilevelProblem.products` of the lower loss of a site."""

    function: Callable[[Upper, Lower, Batch], LowerProducts]

    def __call__(self, x: Upper, y: Lower, batch: Batch, /) -> LowerProducts:
        if isinstance(batch, WholeBatch):

            def mean_of(kind: str, vector: Lower) -> Any:
                return batch.examples.mean(
                    lambda part: getattr(self(x, y, part), kind)(vector), PART
                )

            return LowerProducts(partial(mean_of, "hessian"), partial(mean_of, "cross"))
        if not isinstance(batch, SiteBatch):
            _require_no_sites(x)
            return self.function(x, y, batch)
        term = _first(batch.term)
        hessian, cross = self.function(view_of_site(x, term.number), y, batch.rows)
        return LowerProducts(
            lambda vector: _in_mean(x, term, hessian(vector), False),
            lambda vector: _in_mean(x, term, cross(vector), True),
        )


def _require_no_sites(x: Upper) -> None:
    for path, part in parts_by_site(x)[:1]:
        raise TypeError(
            f"x{path} is a {type(part).__name__}, but the batch does not name its "
            "site. Pass devices that do not share examples."
        )


def _in_mean(
    x: Upper, term: SiteTerm, result: Any, in_x: bool | tuple[bool, ...] | None
) -> Any:
    """Return the result of a site's own loss as a result of its term in the mean."""
    if isinstance(in_x, tuple):
        return tuple(
            _in_mean(x, term, part, is_x)
            for part, is_x in zip(result, in_x, strict=True)
        )

    def scale(leaf: Array) -> Array:
        factor = arrays.cast(term.factor, leaf)
        # Without examples the loss is one of a placeholder, and may not be finite.
        return arrays.where(factor > 0, factor * leaf, 0.0)

    result = jax.tree.map(scale, result)
    return in_all_rows(x, term.number, result) if in_x else result


def _first(term: SiteTerm) -> SiteTerm:
    return SiteTerm(term.number[0], term.factor[0])


def all_finite(batches: PyTree) -> Array:
    """Return whether all numbers of batches are finite.

    Example:
        >>> bool(all_finite((np.ones(2), np.array([np.inf]))))
        False
    """
    leaves = jax.tree.leaves(batches, is_leaf=_is_whole)
    plain = [leaf for leaf in leaves if not _is_whole(leaf)]
    # The arrays of a whole batch may have examples of other devices.
    shares = [
        leaf.examples.mean(lambda part: arrays.number(all_finite(part), part), PART)
        for leaf in {id(leaf): leaf for leaf in leaves if _is_whole(leaf)}.values()
    ]
    finite = arrays.all_finite(plain or shares)
    for share in shares:
        finite &= share == 1.0
    return finite


def _is_whole(value: Any) -> bool:
    return isinstance(value, WholeBatch)
