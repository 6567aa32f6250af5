"""The phases of a diagnosis. Devices use all their examples in each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.protocol import Phase
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, Range, check_ranges, register
from fedbilevel.metrics.device_adjoint import PROBES, DeviceSolves, solve_adjoint


class Question(IntEnum):
    """The phases of a survey, by index."""

    GRADIENT = 0
    """∇y g at (x, y), and its norm on the devices."""
    PRODUCT = 1
    """∇²yy g · vector."""
    UPPER = 2
    """∇x f and ∇y f."""
    CROSS = 3
    """∇²xy g · vector."""
    LOCAL = 4
    """J_k H_k⁻¹ b_k of each device, with at most `limit` products."""


class SurveyState(NamedTuple):
    """The inputs of a survey's phases, and the latest result of each.

    Attributes:
        x: upper variable of the point.
        y: lower variable of the point.
        probes: stacked random vectors by which devices bound their errors.
        vector: vector of the next product.
        limit: largest number of products of a device's local solve.
        residual: residual at which a device's local solve ends, relative to b_k.
        gradient: ∇y ḡ.
        gradient_size: mean over devices of ‖∇y g_k‖.
        product: H̄ · vector.
        direct: ∇x f̄.
        right_side: ∇y f̄.
        cross: J̄ · vector.
        local: means over the devices' local solves.
    """

    x: Upper
    y: Lower
    probes: Lower
    vector: Lower
    limit: int | np.int32 | Int[Array, ""]
    residual: tree.Scalar
    gradient: Lower
    gradient_size: Float[Array, ""]
    product: Lower
    direct: Upper
    right_side: Lower
    cross: Upper
    local: DeviceSolves


@register
@dataclass(frozen=True)
class Survey:
    """The settings and phases of a diagnosis, which changes neither x nor y.

    Each `Question` is an exchange. A device uses all of its examples, so that results
    have no sampling noise: the inverse of a batch's Hessian is a biased estimate of the
    inverse Hessian, the more so the worse it is conditioned.

    Attributes:
        batch_size: number of examples that a device evaluates at once; memory grows
            with it.
        products: largest number of Hessian products of one solve, by the server or by a
            device.
        residual: residual at which a solve ends, relative to its right-hand side.

    Example:
        >>> from fedbilevel import BilevelProblem
        >>> loss = lambda x, y, batch: y**2
        >>> len(Survey().phases(BilevelProblem(loss, loss))) == len(Question)
        True
    """

    batch_size: Count = 64
    products: Annotated[int, Range(at_least=1.0, whole=True)] = 5000
    residual: Annotated[float, Range(above=0.0, below=1.0)] = 1e-8

    def __post_init__(self) -> None:
        check_ranges(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[SurveyState, tuple[()]]:
        """Return the state at (x, y) with results of zero; devices keep no state."""
        zero_x, zero_y = tree.scale(0.0, x), tree.scale(0.0, y)
        zero = 0.0 * tree.squared_norm(y)
        return SurveyState(
            x,
            y,
            probes=_random_vectors(y),
            vector=zero_y,
            limit=np.int32(0),
            residual=zero,
            gradient=zero_y,
            gradient_size=zero,
            product=zero_y,
            direct=zero_x,
            right_side=zero_y,
            cross=zero_x,
            local=DeviceSolves(zero_x, *(zero,) * 6),
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return (): a survey has no opening round."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return a phase for each `Question`, in their order."""
        size = self.batch_size

        def over_lower(oracle: Callable[..., PyTree]) -> Callable[..., PyTree]:
            """Return a device's answer: the mean of an oracle over lower examples."""
            return lambda downlink, data, key: data.lower.mean(
                lambda batch: oracle(*downlink[:2], batch, *downlink[2:]), size
            )

        slope = over_lower(problem.lower_gradient)
        product = over_lower(problem.hessian_product)
        cross = over_lower(problem.cross_product)

        def gradient(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Lower, Float[Array, ""]]:
            local = slope(downlink, data, key)
            return local, jnp.sqrt(tree.squared_norm(local))

        def upper(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Upper, Lower]:
            gradients: tuple[Upper, Lower] = data.upper.mean(
                lambda batch: problem.upper_gradients(*downlink, batch), size
            )
            return gradients

        def solve(
            downlink: tuple[Upper, Lower, Lower, Int[Array, ""], tree.Scalar],
            data: DeviceData,
            key: RandomKey,
        ) -> DeviceSolves:
            x, y, probes, limit, residual = downlink
            _, right = upper((x, y), data, key)
            return solve_adjoint(
                lambda vector: product((x, y, vector), data, key),
                lambda vector: cross((x, y, vector), data, key),
                right,
                probes,
                limit,
                residual,
            )

        return (
            queries.ask(
                "lower gradient",
                lambda server: (server.x, server.y),
                gradient,
                lambda server, mean, key: server._replace(
                    gradient=mean[0], gradient_size=mean[1]
                ),
            ),
            queries.ask(
                "Hessian product",
                lambda server: (server.x, server.y, server.vector),
                product,
                lambda server, mean, key: server._replace(product=mean),
            ),
            queries.ask(
                "upper gradients",
                lambda server: (server.x, server.y),
                upper,
                lambda server, mean, key: server._replace(
                    direct=mean[0], right_side=mean[1]
                ),
            ),
            queries.ask(
                "cross product",
                lambda server: (server.x, server.y, server.vector),
                cross,
                lambda server, mean, key: server._replace(cross=mean),
            ),
            queries.ask(
                "local solutions",
                lambda server: (
                    server.x,
                    server.y,
                    server.probes,
                    server.limit,
                    server.residual,
                ),
                solve,
                lambda server, mean, key: server._replace(local=mean),
            ),
        )


def _random_vectors(like: Lower) -> Lower:
    """Return `PROBES` stacked normal vectors, always the same.

    Vectors of signs would suffice for norms, but (1, …, 1) is an eigenvector of many
    Hessians, and a solve along an eigenvector sees no other curvature.
    """
    generator = np.random.default_rng(0)

    def vectors(leaf: Array) -> Array:
        return jnp.asarray(generator.normal(size=(PROBES, *leaf.shape)), leaf.dtype)

    return jax.tree.map(vectors, like)
