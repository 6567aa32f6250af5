"""What a diagnosis solves over exchanges: y*(x), the adjoint, the devices' own ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any, NamedTuple

import jax

from fedbilevel.algorithms.own_solves import PROBE_RESIDUAL, PROBES
from fedbilevel.algorithms.survey import Question, Survey, SurveyState
from fedbilevel.engines.inquiry import Inquiry
from fedbilevel.mathematics import conjugate_gradients, tree
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.obstacles import (
    Cause,
    DiagnosisProgress,
    Obstacle,
    ObstacleError,
    Stage,
)

NEWTON_STEPS = 50
NEWTON_RESIDUAL = 1e-3
"""Of the linear system of a Newton step, relative to the gradient."""
LOWER_RESIDUAL = 1e-9
"""‖∇y ḡ‖ at y*(x), relative to the largest mean of ‖∇y g_k‖ on the way."""
SMALLEST_STEP = 1e-10
"""A Newton step so short, relative to y, changes nothing."""
HALVINGS = 30
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

    inquiry: Inquiry
    survey: Survey
    report: Callable[[DiagnosisProgress], None]

    def lower_solution(self, server: SurveyState) -> SurveyState:
        """Return the state with y*(x), by damped Newton steps from y.

        Raises:
            ObstacleError: if the lower loss is not convex or too ill-conditioned.
            ArithmeticError: if Newton steps do not lead to a minimum.
        """
        server = self.inquiry.ask(Question.GRADIENT, server)
        largest = 0.0
        for _ in range(NEWTON_STEPS):
            size = norm(server.gradient)
            largest = max(largest, float(server.gradient_size))
            share = size / largest if largest else 0.0
            self._tell(Stage.LOWER, share, LOWER_RESIDUAL)
            if share <= LOWER_RESIDUAL:
                return server
            step = self._conjugate_gradients(
                server,
                server.gradient,
                Stage.LOWER,
                NEWTON_RESIDUAL,
                partial(self._tell_lower, share),
            ).solution
            if norm(step) <= SMALLEST_STEP * norm(server.y):
                return server
            server = self._damped(server, step, size)
        raise ArithmeticError(
            f"y*(x) was not found in {NEWTON_STEPS} Newton steps: ‖∇y g‖ is "
            f"{norm(server.gradient):.2g}; check that lower_loss is smooth and "
            "strongly convex in y, or ask at a point nearer to its minimum."
        )

    def error_factor(self, server: SurveyState) -> float:
        """Return a bound of ‖J̄ H̄⁻¹‖, from random vectors.

        Raises:
            ObstacleError: if the Hessian is not positive, or too ill-conditioned.
        """
        probes = [
            jax.tree.map(lambda leaf, i=i: leaf[i], server.probes)
            for i in range(PROBES)
        ]
        squares = [norm(self._cross(server, probe)) ** 2 for probe in probes]
        # A random vector has a part in every curvature, which ∇y f̄ may lack.
        solve = self._conjugate_gradients(
            server,
            probes[0],
            Stage.CURVATURE,
            PROBE_RESIDUAL,
            lambda left: self._tell(Stage.CURVATURE, left, PROBE_RESIDUAL),
        )
        return sqrt(sum(squares) / PROBES) * float(solve.inverse_bound)

    def adjoint(self, server: SurveyState, factor: float, residual: float) -> Adjoint:
        """Return J̄ z with H̄ z = ∇y f̄; the state must have the latter.

        Args:
            server: with ∇y f̄ at y*(x).
            factor: a bound of ‖J̄ H̄⁻¹‖.
            residual: at which the solve is done, relative to ∇y f̄.

        Raises:
            ObstacleError: if it cannot be solved.
        """
        right = server.right_side
        solve = self._conjugate_gradients(
            server,
            right,
            Stage.ADJOINT,
            residual,
            lambda left: self._tell(Stage.ADJOINT, left, residual),
        )
        z, whole = solve.solution, norm(right)
        # The recursion's residual drifts from the true one: this is measured.
        rest = norm(tree.subtract(right, self._product(server, z)))
        left = max(rest, sqrt(float(solve.squared)))
        return Adjoint(
            self._cross(server, z), factor * left, left / whole if whole else 0.0
        )

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
            self._tell(Stage.OWN, left, residual)
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

    def _conjugate_gradients(
        self,
        server: SurveyState,
        right: Lower,
        stage: Stage,
        tolerance: float,
        tell: Callable[[float], None],
    ) -> conjugate_gradients.Solve:
        solve = conjugate_gradients.begin(right, tolerance)
        whole = norm(right)
        while not bool(solve.done):
            left = sqrt(float(solve.squared)) / whole
            tell(left)
            if int(solve.products) >= self.survey.products:
                needed = ceil(float(conjugate_gradients.products_needed(solve)))
                raise ObstacleError(Obstacle(Cause.NOT_CONVERGED, stage, left, needed))
            product = self._product(server, solve.direction)
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

    def _damped(self, server: SurveyState, step: Lower, size: float) -> SurveyState:
        # ‖∇y ḡ‖ falls along a Newton step wherever the Hessian can be inverted, and
        # rounding hides it later than a decrease of the loss.
        rate = 1.0
        for _ in range(HALVINGS):
            candidate: SurveyState = self.inquiry.ask(
                Question.GRADIENT,
                server._replace(y=tree.add_scaled(server.y, -rate, step)),
            )
            if norm(candidate.gradient) <= (1 - 0.1 * rate) * size:
                return candidate
            rate /= 2
        raise ArithmeticError(
            f"y*(x) was not found: no part of a Newton step lowers ‖∇y g‖, which is "
            f"{size:.2g}; check that lower_loss is smooth and strongly convex in y."
        )

    def _product(self, server: SurveyState, vector: Lower) -> Lower:
        return self.inquiry.ask(
            Question.PRODUCT, server._replace(vector=vector)
        ).product

    def _cross(self, server: SurveyState, vector: Lower) -> Upper:
        return self.inquiry.ask(Question.CROSS, server._replace(vector=vector)).cross

    def _tell_lower(self, share: float, left: float) -> None:
        # What a Newton step leaves of a quadratic's gradient.
        self._tell(Stage.LOWER, share * left, LOWER_RESIDUAL)

    def _tell(self, stage: Stage, residual: float, goal: float) -> None:
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
