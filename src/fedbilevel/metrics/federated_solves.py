"""What a diagnosis solves over exchanges: the adjoint and the devices' own ones."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple

import jax

from fedbilevel.algorithms.device_adjoint import PROBE_RESIDUAL, PROBES
from fedbilevel.engines.query_session import QuerySession
from fedbilevel.mathematics import conjugate_gradients, tree
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.obstacles import (
    Cause,
    DiagnosisProgress,
    Obstacle,
    ObstacleError,
    Stage,
)
from fedbilevel.metrics.survey import Question, Survey, SurveyState

FIRST_OWN_PRODUCTS = 64


class Adjoint(NamedTuple):
    """A solved adjoint and what follows from it.

    Attributes:
        indirect: J z.
        error: a bound of the error of J z.
        residual: relative to the right-hand side, measured by a product of its own.

    Example:
        >>> Adjoint(indirect=1.0, error=1e-9, residual=1e-10).error
        1e-09
    """

    indirect: Upper
    error: float
    residual: float


class Curvature(NamedTuple):
    """Bounds of the inverse of the mean Hessian.

    Attributes:
        inverse_bound: of ‖H̄⁻¹‖.
        factor: of ‖J̄ H̄⁻¹‖.
        weak: H̄⁻¹ v for a random vector v: mostly of directions with little curvature.

    Example:
        >>> Curvature(inverse_bound=10.0, factor=20.0, weak=-10.0).factor
        20.0
    """

    inverse_bound: float
    factor: float
    weak: Lower


@dataclass
class FederatedSolves:
    """Solves over exchanges, the devices answering a survey's questions.

    Attributes:
        inquiry: asks the devices.
        survey: the settings.
        report: is called after each exchange.

    Example:
        >>> FederatedSolves.__name__
        'FederatedSolves'
    """

    inquiry: QuerySession
    survey: Survey
    report: Callable[[DiagnosisProgress], None]

    def gradient_terms(self, server: SurveyState) -> float:
        """Return the size of the terms that cancel in ∇y ḡ at y*(x).

        They are the devices' gradients and, since these may vanish alike, H̄ y: the
        part of ∇y ḡ that depends on y where the lower loss is quadratic.
        """
        return float(server.gradient_size) + norm(self.product(server, server.y))

    def curvature(self, server: SurveyState) -> Curvature:
        """Return bounds of H̄⁻¹, from random vectors.

        Raises:
            ObstacleError: if the Hessian is not positive, or too ill-conditioned.
        """
        probes = [
            jax.tree.map(lambda leaf, i=i: leaf[i], server.probes)
            for i in range(PROBES)
        ]
        squares = [norm(self.cross(server, probe)) ** 2 for probe in probes]
        # A random vector has a part in every curvature, which ∇y f̄ may lack.
        solve = self.conjugate_gradients(
            server,
            probes[0],
            Stage.CURVATURE,
            PROBE_RESIDUAL,
            lambda left: self.tell(Stage.CURVATURE, left, PROBE_RESIDUAL),
        )
        bound = float(solve.inverse_bound)
        return Curvature(bound, sqrt(sum(squares) / PROBES) * bound, solve.solution)

    def adjoint(
        self, server: SurveyState, factor: float, residual: float
    ) -> tuple[Adjoint, Lower]:
        """Return J̄ z and z with H̄ z = ∇y f̄; the state must have the latter.

        Args:
            server: with ∇y f̄ at y*(x).
            factor: a bound of ‖J̄ H̄⁻¹‖.
            residual: at which the solve is done, relative to ∇y f̄.

        Raises:
            ObstacleError: if it cannot be solved.
        """
        right = server.right_side
        solve = self.conjugate_gradients(
            server,
            right,
            Stage.ADJOINT,
            residual,
            lambda left: self.tell(Stage.ADJOINT, left, residual),
        )
        z, whole = solve.solution, norm(right)
        # The recursion's residual drifts from the true one: this is measured.
        rest = norm(tree.subtract(right, self.product(server, z)))
        left = max(rest, sqrt(float(solve.squared)))
        relative = left / whole if whole else 0.0
        return Adjoint(self.cross(server, z), factor * left, relative), z

    def own_adjoints(self, server: SurveyState, residual: float) -> Adjoint:
        """Return the mean of J_k z_k with H_k z_k = ∇y f_k, solved by each device.

        Raises:
            ObstacleError: if a device cannot solve its own.
        """
        limit = min(FIRST_OWN_PRODUCTS, self.survey.products)
        while True:
            # From the beginning with twice the products: devices keep nothing.
            server = self.inquiry.ask(
                Question.OWN, server._replace(limit=limit, residual=residual)
            )
            own = server.own
            left = float(own.residual)
            self.tell(Stage.OWN, left, residual)
            share = float(own.not_convex)
            if share:
                raise ObstacleError(
                    Obstacle(
                        Cause.NEGATIVE_CURVATURE,
                        Stage.OWN,
                        left,
                        curvature=float(own.curvature) / share,
                        devices=share,
                    )
                )
            share = float(own.unfinished)
            if not share:
                return Adjoint(own.indirect, float(own.error), left)
            if limit == self.survey.products:
                needed = ceil(float(own.needed) / share)
                raise ObstacleError(
                    Obstacle(
                        Cause.NOT_CONVERGED, Stage.OWN, left, needed, devices=share
                    )
                )
            limit = min(2 * limit, self.survey.products)

    def product(self, server: SurveyState, vector: Lower) -> Lower:
        """Return H̄ times a vector."""
        return self.inquiry.ask(
            Question.PRODUCT, server._replace(vector=vector)
        ).product

    def cross(self, server: SurveyState, vector: Lower) -> Upper:
        """Return J̄ times a vector."""
        return self.inquiry.ask(Question.CROSS, server._replace(vector=vector)).cross

    def conjugate_gradients(
        self,
        server: SurveyState,
        right: Lower,
        stage: Stage,
        tolerance: float,
        tell: Callable[[float], None],
    ) -> conjugate_gradients.Solve:
        """Solve H̄ z = b, each product an exchange.

        Args:
            server: where.
            right: b.
            stage: whose solve it is.
            tolerance: the residual at which the solve is done, relative to b.
            tell: is called with the relative residual before each product.

        Raises:
            ObstacleError: if the Hessian is not positive, or too ill-conditioned.
        """
        solve = conjugate_gradients.begin(right, tolerance)
        whole = norm(right)
        while not bool(solve.converged):
            left = sqrt(float(solve.squared)) / whole
            tell(left)
            if int(solve.products) >= self.survey.products:
                needed = ceil(float(conjugate_gradients.products_needed(solve)))
                raise ObstacleError(Obstacle(Cause.NOT_CONVERGED, stage, left, needed))
            product = self.product(server, solve.direction)
            solve = _advance(solve, product)
            if not bool(solve.convex):
                raise ObstacleError(
                    Obstacle(
                        Cause.NEGATIVE_CURVATURE,
                        stage,
                        left,
                        curvature=float(solve.lowest),
                    )
                )
        return solve

    def tell(self, stage: Stage, residual: float, goal: float) -> None:
        """Report the residual of a solve and the one at which it is done."""
        exchanges = self.inquiry.costs.exchanges
        self.report(DiagnosisProgress(stage, exchanges, residual, goal))


def norm(variable: Any) -> float:
    """Return the Euclidean norm of all entries.

    Example:
        >>> import jax.numpy as jnp
        >>> norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])})
        5.0
    """
    return sqrt(float(tree.squared_norm(variable)))


_advance = jax.jit(conjugate_gradients.advance)
