"""Linear solves over exchanges: the global adjoint and the devices' local ones."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple

import jax

from fedbilevel.engines.query_session import QuerySession
from fedbilevel.mathematics import conjugate_gradients, tree
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.device_adjoint import PROBE_RESIDUAL, PROBES
from fedbilevel.metrics.obstacles import (
    DiagnosisProgress,
    Obstacle,
    ObstacleCause,
    ObstacleError,
    Stage,
)
from fedbilevel.metrics.survey import Question, Survey, SurveyState

FIRST_OWN_PRODUCTS = 64


class Adjoint(NamedTuple):
    """The product J z with an adjoint z, and its error.

    Attributes:
        indirect: J z.
        error: bound on the error of J z.
        residual: residual relative to the right-hand side, measured by a product.
    """

    indirect: Upper
    error: float
    residual: float


class Curvature(NamedTuple):
    """Bounds on the inverse of the mean Hessian.

    Attributes:
        inverse_bound: bound on ‖H̄⁻¹‖.
        factor: bound on ‖J̄ H̄⁻¹‖.
        weak: H̄⁻¹ v for a random vector v, dominated by directions of low curvature.
    """

    inverse_bound: float
    factor: float
    weak: Lower


@dataclass
class FederatedSolves:
    """Linear solves with the devices' Hessians, over exchanges.

    Attributes:
        session: session that runs the exchanges.
        survey: settings of the solves.
        report: function called with the progress after each exchange.
    """

    session: QuerySession
    survey: Survey
    report: Callable[[DiagnosisProgress], None]

    def gradient_terms(self, server: SurveyState) -> float:
        """Return the norm of the terms that cancel in ∇y ḡ at y*(x).

        The terms are the devices' gradients and, since all of these may vanish, H̄ y:
        the part of ∇y ḡ that depends on y if the lower loss is quadratic.
        """
        return float(server.gradient_size) + norm(self.product(server, server.y))

    def curvature(self, server: SurveyState) -> Curvature:
        """Return bounds on H̄⁻¹, from random vectors.

        Raises:
            ObstacleError: if the Hessian is not positive definite, or too
                ill-conditioned.
        """
        probes = [
            jax.tree.map(lambda leaf, i=i: leaf[i], server.probes)
            for i in range(PROBES)
        ]
        squares = [norm(self.cross(server, probe)) ** 2 for probe in probes]
        # A random vector has a component in every eigenspace; ∇y f̄ may lack some.
        solve = self.conjugate_gradients(
            server, probes[0], Stage.CURVATURE, PROBE_RESIDUAL
        )
        bound = float(solve.inverse_bound)
        return Curvature(bound, sqrt(sum(squares) / PROBES) * bound, solve.solution)

    def adjoint(
        self, server: SurveyState, factor: float, residual: float
    ) -> tuple[Adjoint, Lower]:
        """Return J̄ z and z with H̄ z = ∇y f̄.

        Args:
            server: state at y*(x), with ∇y f̄.
            factor: bound on ‖J̄ H̄⁻¹‖.
            residual: residual at which the solve ends, relative to ∇y f̄.

        Raises:
            ObstacleError: if the solve fails.
        """
        right = server.right_side
        solve = self.conjugate_gradients(server, right, Stage.ADJOINT, residual)
        z, size = solve.solution, norm(right)
        # The residual of the recursion drifts from the true one, which is measured.
        rest = norm(tree.subtract(right, self.product(server, z)))
        left = max(rest, sqrt(float(solve.squared)))
        relative = left / size if size else 0.0
        return Adjoint(self.cross(server, z), factor * left, relative), z

    def local_adjoints(self, server: SurveyState, residual: float) -> Adjoint:
        """Return the mean of J_k z_k with H_k z_k = ∇y f_k, solved by each device.

        Raises:
            ObstacleError: if the solve of a device fails.
        """
        limit = min(FIRST_OWN_PRODUCTS, self.survey.products)
        while True:
            # Devices keep no state, so they start again with twice the products.
            server = self.session.ask(
                Question.LOCAL, server._replace(limit=limit, residual=residual)
            )
            local = server.local
            left = float(local.residual)
            self.report_residual(Stage.LOCAL, left, residual)
            share = float(local.not_convex)
            if share:
                cause, lowest = ObstacleCause.NEGATIVE_CURVATURE, float(local.curvature)
                obstacle = Obstacle(cause, Stage.LOCAL, left, devices=share)
                raise ObstacleError(obstacle._replace(curvature=lowest / share))
            share = float(local.unfinished)
            if not share:
                return Adjoint(local.indirect, float(local.error), left)
            if limit == self.survey.products:
                needed = ceil(float(local.needed) / share)
                cause = ObstacleCause.NOT_CONVERGED
                raise ObstacleError(
                    Obstacle(cause, Stage.LOCAL, left, needed, devices=share)
                )
            limit = min(2 * limit, self.survey.products)

    def product(self, server: SurveyState, vector: Lower) -> Lower:
        """Return H̄ times a vector."""
        return self.session.ask(
            Question.PRODUCT, server._replace(vector=vector)
        ).product

    def cross(self, server: SurveyState, vector: Lower) -> Upper:
        """Return J̄ times a vector."""
        return self.session.ask(Question.CROSS, server._replace(vector=vector)).cross

    def conjugate_gradients(
        self,
        server: SurveyState,
        right: Lower,
        stage: Stage,
        tolerance: float,
        share: float = 1.0,
        goal: float | None = None,
    ) -> conjugate_gradients.Solve:
        """Solve H̄ z = b, with one exchange for each product.

        Args:
            server: state with the point (x, y).
            right: right-hand side b.
            stage: stage of the diagnosis.
            tolerance: residual at which the solve ends, relative to b.
            share: residual of the whole search before this solve, to report.
            goal: residual at which the whole search ends; that of the solve by default.

        Raises:
            ObstacleError: if the Hessian is not positive definite, or too
                ill-conditioned.
        """
        solve = conjugate_gradients.begin(right, tolerance)
        size = norm(right)
        while not bool(solve.converged):
            left = sqrt(float(solve.squared)) / size
            self.report_residual(stage, share * left, goal or tolerance)
            if int(solve.products) >= self.survey.products:
                needed = ceil(float(conjugate_gradients.products_needed(solve)))
                cause = ObstacleCause.NOT_CONVERGED
                raise ObstacleError(Obstacle(cause, stage, left, needed))
            product = self.product(server, solve.direction)
            solve = _advance(solve, product)
            if not bool(solve.convex):
                cause, lowest = ObstacleCause.NEGATIVE_CURVATURE, float(solve.lowest)
                raise ObstacleError(Obstacle(cause, stage, left, curvature=lowest))
        return solve

    def report_residual(self, stage: Stage, residual: float, goal: float) -> None:
        """Report the residual of a solve and the residual at which it ends."""
        exchanges = self.session.costs.exchanges
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
