"""The server's mean, taken as replies arrive."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Phase,
    Server,
    Uplink,
)
from fedbilevel.engines.mean import WeightedMean, conclude, merge, stacked_mean
from fedbilevel.engines.protocol import PhaseReference
from fedbilevel.engines.screening import acceptable
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem


def form_of_mean(
    algorithm: FederatedAlgorithm,
    form: PyTree,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> WeightedMean:
    """Return shapes and types of the mean of what devices send.

    Args:
        algorithm: what devices and server do.
        form: shapes and types of what a device sends and reports.
        problem: the two losses.
        reference: the phase.

    Example:
        >>> form_of_mean.__name__
        'form_of_mean'
    """
    found: WeightedMean = _alone.eval_shape(
        algorithm, *form, problem=problem, reference=reference
    )
    return found


def mean_of_nobody(form: WeightedMean) -> WeightedMean:
    """Return the mean before any reply, to fold replies into.

    Example:
        >>> number = jax.ShapeDtypeStruct((), jnp.float32)
        >>> mean_of_nobody(WeightedMean(number, number, number, {})).weight
        Array(0., dtype=float32)
    """
    zeros: WeightedMean = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form
    )
    return zeros


@partial(jax.jit, static_argnames=("problem", "reference"), donate_argnames="total")
def fold(
    algorithm: FederatedAlgorithm,
    total: WeightedMean,
    uplink: Uplink,
    info: Info,
    weight: tree.Rate,
    norm_limit: tree.Rate | None,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[WeightedMean, Bool[Array, ""]]:
    """Return the mean with one more upload, and whether it could be used.

    An upload that cannot be used leaves the mean as it was.

    Example:
        >>> fold.__name__
        'fold'
    """
    phase = reference.of(algorithm, problem)
    stacked = jax.tree.map(lambda leaf: leaf[None], phase.receive(uplink))
    told = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], info)
    (fine,) = acceptable(stacked, acceptable(told, jnp.array([True]), None), norm_limit)
    one = _mean_of_one(phase, uplink, info, jnp.where(fine, weight, 0))
    return merge(total, one), fine


def _mean_of_one(phase: Phase, uplink: Uplink, info: Info, weight: Any) -> WeightedMean:
    uplinks, infos = jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[None], (phase.receive(uplink), info)
    )
    share = jnp.asarray(weight, jnp.result_type(float))
    return stacked_mean(uplinks, infos, share[None])


@partial(jax.jit, static_argnames=("problem", "reference"))
def _alone(
    algorithm: FederatedAlgorithm,
    uplink: Uplink,
    info: Info,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> WeightedMean:
    return _mean_of_one(reference.of(algorithm, problem), uplink, info, 0)


@partial(jax.jit, static_argnames=("problem", "reference"))
def concluded(
    algorithm: FederatedAlgorithm,
    server: Server,
    mean: WeightedMean,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Server, PyTree]:
    """Return the server's next state, and how far devices had drifted apart.

    Example:
        >>> concluded.__name__
        'concluded'
    """
    return conclude(reference.of(algorithm, problem), server, mean)
