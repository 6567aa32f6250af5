"""The streaming mean of uploads, updated as replies arrive.

It uses NumPy: uploads arrive in host memory, and passing 50 MB to a compiled program
takes longer than the update itself.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import (
    MEAN,
    Aggregation,
    Downlink,
    FederatedAlgorithm,
    Info,
    Upload,
)
from fedbilevel.engines.mean import WeightedMean, accumulator
from fedbilevel.engines.protocol import PhaseReference
from fedbilevel.engines.whole_shares import whole_shares
from fedbilevel.mathematics.problem import BilevelProblem


class RunningMean:
    """The weighted mean of uploads and metrics, and the deviation of the uploads.

    It equals `stacked_mean` of all uploads, but takes one at a time.

    Args:
        received: shapes and types of an upload as the server averages it.
        info: shapes and types of a device's metrics.
        aggregation: mean or sum of the uploads.

    Example:
        >>> form = jax.ShapeDtypeStruct((), np.float32)
        >>> mean = RunningMean(form, {})
        >>> mean.add(np.float32(1.0), {}, weight=0.75)
        >>> mean.add(np.float32(5.0), {}, weight=0.25)
        >>> float(mean.value.upload), float(mean.value.deviation)
        (2.0, 3.0)
    """

    def __init__(
        self, received: PyTree, info: PyTree, aggregation: Aggregation = MEAN
    ) -> None:
        self._is_sum = aggregation.is_sum
        summed, averaged = (received, ()) if self._is_sum else ((), received)
        totals, self._form_of_totals = jax.tree.flatten(summed)
        self._totals = [np.zeros(leaf.shape, np.int32) for leaf in totals]
        leaves, self._structure = jax.tree.flatten((averaged, info))
        self._means = [np.zeros(leaf.shape, accumulator(leaf)) for leaf in leaves]
        self._scratch = [np.empty_like(mean) for mean in self._means]
        self._deviations = [0.0] * len(leaves)
        self._weight = 0.0

    def add(self, received: PyTree, info: Info, weight: float) -> None:
        """Add an upload."""
        total = self._weight + weight
        share = weight / total
        summed, averaged = (received, ()) if self._is_sum else ((), received)
        for whole, leaf in zip(self._totals, jax.tree.leaves(summed), strict=True):
            whole += leaf * whole_shares(np, np.float64(weight))
        for index, leaf in enumerate(jax.tree.leaves((averaged, info))):
            mean, away = self._means[index], self._scratch[index]
            leaf = np.asarray(leaf, mean.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(leaf, mean, out=away)
                squares = float(np.dot(away.ravel(), away.ravel()))
            self._deviations[index] += self._weight * share * squares
            if np.isfinite(squares):
                away *= share
                mean += away
            else:  # The difference of two finite numbers may be infinite.
                mean *= 1 - share
                mean += np.multiply(leaf, share, out=away)
        self._weight = total

    @property
    def value(self) -> WeightedMean:
        """The mean of all uploads so far."""
        upload, info = jax.tree.unflatten(self._structure, self._means)
        spread = [
            jnp.asarray(deviation, mean.dtype)
            for deviation, mean in zip(self._deviations, self._means, strict=True)
        ]
        deviation, _ = jax.tree.unflatten(self._structure, spread)
        return WeightedMean(
            jnp.asarray(self._weight, float),
            jax.tree.map(jnp.asarray, upload),
            deviation,
            jax.tree.map(jnp.asarray, info),
            jax.tree.unflatten(self._form_of_totals, map(jnp.asarray, self._totals)),
        )


@partial(jax.jit, static_argnames=("problem", "reference"))
def decode_upload(
    algorithm: FederatedAlgorithm,
    upload: Upload,
    downlink: Downlink,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> Upload:
    """Return an upload decoded by its phase, as the server averages it."""
    return reference.of(algorithm, problem).decode_upload(upload, downlink)
