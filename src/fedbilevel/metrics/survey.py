"""The questions of a diagnosis, each answered from all examples of a device."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.device_adjoint import PROBES, DeviceSolves, solve_adjoint
from fedbilevel.algorithms.protocol import Phase
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, Range, check_ranges, register


class Question(IntEnum):
    """The phases of a survey, by their place.

    Example:
        >>> Question.PRODUCT.value
        1
    """

    GRADIENT = 0
    """∇y g at (x, y), and its size on the devices."""
    PRODUCT = 1
    """∇²yy g · vector."""
    UPPER = 2
    """∇x f and ∇y f."""
    CROSS = 3
    """∇²xy g · vector."""
    OWN = 4
    """J_k H_k⁻¹ b_k of each device by itself, with at most `limit` products."""


class SurveyState(NamedTuple):
    """What the server asks about, and the latest answer to each question.

    Attributes:
        x: where the survey is made.
        y: where the survey is made.
        probes: random vectors, stacked, by which devices bound their errors.
        vector: what products are asked of.
        limit: the most products of a device's own solve.
        residual: at which a device's own solve is done, relative to b_k.
        gradient: ∇y ḡ.
        gradient_size: the mean over devices of ‖∇y g_k‖.
        product: H̄ · vector.
        direct: ∇x f̄.
        right_side: ∇y f̄.
        cross: J̄ · vector.
        own: of the devices' own solves.

    Example:
        >>> SurveyState(*range(13)).own
        12
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
    own: DeviceSolves


@register
@dataclass(frozen=True)
class Survey:
    """Asks devices what a diagnosis needs, and moves nothing.

    Each question is an exchange. A device answers it from all of its examples, so that
    answers have no sampling noise: the inverse of a batch's Hessian is a biased
    estimate of the inverse Hessian, the more so the worse it is conditioned.

    Attributes:
        batch_size: examples that a device evaluates at once; memory grows with it.
        products: the most Hessian products of one solve, by the server or by a device.
        residual: a solve is done when its residual is this small, relative to its
            right-hand side.

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
        """Return the point, nothing known about it; devices keep nothing."""
        nothing, none = tree.scale(0.0, y), tree.scale(0.0, x)
        zero = 0.0 * tree.squared_norm(y)
        own = DeviceSolves(none, *(zero,) * 6)
        return SurveyState(
            x,
            y,
            probes=_random_vectors(y),
            vector=nothing,
            limit=np.int32(0),
            residual=zero,
            gradient=nothing,
            gradient_size=zero,
            product=nothing,
            direct=none,
            right_side=nothing,
            cross=none,
            own=own,
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return nothing: a survey has no first round."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return an exchange for each `Question`, in their order."""
        size = self.batch_size

        def gradient(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Lower, Float[Array, ""]]:
            mine = data.lower.mean(
                lambda batch: problem.lower_gradient(*downlink, batch), size
            )
            return mine, jnp.sqrt(tree.squared_norm(mine))

        def product(
            downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
        ) -> Lower:
            return self._hessian(problem, data, *downlink[:2])(downlink[2])

        def upper(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Upper, Lower]:
            gradients: tuple[Upper, Lower] = data.upper.mean(
                lambda batch: problem.upper_gradients(*downlink, batch), size
            )
            return gradients

        def cross(
            downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
        ) -> Upper:
            return self._mixed(problem, data, *downlink[:2])(downlink[2])

        def own(
            downlink: tuple[Upper, Lower, Lower, Int[Array, ""], tree.Scalar],
            data: DeviceData,
            key: RandomKey,
        ) -> DeviceSolves:
            x, y, probes, limit, residual = downlink
            _, right = upper((x, y), data, key)
            hessian = self._hessian(problem, data, x, y)
            mixed = self._mixed(problem, data, x, y)
            return solve_adjoint(hessian, mixed, right, probes, limit, residual)

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
                "own solutions",
                lambda server: (
                    server.x,
                    server.y,
                    server.probes,
                    server.limit,
                    server.residual,
                ),
                own,
                lambda server, mean, key: server._replace(own=mean),
            ),
        )

    def _hessian(
        self, problem: BilevelProblem, data: DeviceData, x: Upper, y: Lower
    ) -> Callable[[Lower], Lower]:
        return lambda vector: data.lower.mean(
            lambda batch: problem.hessian_product(x, y, batch, vector),
            self.batch_size,
        )

    def _mixed(
        self, problem: BilevelProblem, data: DeviceData, x: Upper, y: Lower
    ) -> Callable[[Lower], Upper]:
        return lambda vector: data.lower.mean(
            lambda batch: problem.cross_product(x, y, batch, vector),
            self.batch_size,
        )


def _random_vectors(like: Lower) -> Lower:
    """Return `PROBES` normal vectors, stacked; always the same.

    Vectors of signs would do for norms, but (1, …, 1) is an eigenvector of many a
    Hessian, and a solve along an eigenvector sees no other curvature.
    """
    generator = np.random.default_rng(0)

    def vectors(leaf: Array) -> Array:
        return jnp.asarray(generator.normal(size=(PROBES, *leaf.shape)), leaf.dtype)

    return jax.tree.map(vectors, like)
