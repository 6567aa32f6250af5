"""Newton steps to y*(x) over exchanges."""

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Lower
from fedbilevel.metrics.federated_solves import FederatedSolves, norm
from fedbilevel.metrics.obstacles import Stage
from fedbilevel.metrics.survey import Question, SurveyState

NEWTON_STEPS = 50
NEWTON_RESIDUAL = 1e-3
"""Residual of the linear system of a Newton step, relative to the gradient."""
LOWER_RESIDUAL = 1e-9
"""‖∇y ḡ‖ at which Newton steps end, relative to the terms that cancel in it."""
SMALLEST_STEP = 1e-10
"""Length of a Newton step at which steps end, relative to y or to the way so far."""
STALLED = 0.5
"""Rounding stops Newton steps if ‖∇y ḡ‖ falls by less than this factor near y*(x)."""
HALVINGS = 30


def lower_solution(solves: FederatedSolves, server: SurveyState) -> SurveyState:
    """Return the state near y*(x), by damped Newton steps from y.

    Args:
        solves: the solves over exchanges.
        server: state at the start of Newton's method.

    Raises:
        ObstacleError: if the lower loss is not convex or too ill-conditioned.
        ArithmeticError: if Newton steps do not converge to a minimum.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.engines.run import Run
        >>> from fedbilevel.metrics.survey import Survey
        >>> from fedbilevel.engines.query_session import QuerySession
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> devices = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))] * 2)
        >>> inputs = BilevelProblem(loss, loss), Survey(), devices, 2.0, 3.0
        >>> session = QuerySession(Run(*inputs, rounds=1))
        >>> solves = FederatedSolves(session, Survey(), lambda progress: None)
        >>> float(lower_solution(solves, session.server).y)
        2.0
    """
    start = server.y
    server = solves.session.ask(Question.GRADIENT, server)
    for _ in range(NEWTON_STEPS):
        # Terms are those at this y, so that a far start does not end the search early.
        size, terms = norm(server.gradient), solves.gradient_terms(server)
        share = size / terms if terms else 0.0
        solves.report_residual(Stage.LOWER, share, LOWER_RESIDUAL)
        if share <= LOWER_RESIDUAL:
            return server
        step = _newton_step(solves, server, share, LOWER_RESIDUAL)
        way = norm(tree.subtract(server.y, start))
        # If y*(x) = 0, the terms of the gradient vanish as well.
        if norm(step) <= SMALLEST_STEP * max(norm(server.y), way):
            return server
        server = _damped_step(solves, server, step, size)
    raise ArithmeticError(
        f"{NEWTON_STEPS} Newton steps did not converge to y*(x): ‖∇y g‖ is "
        f"{norm(server.gradient):.2g}. Check that lower_loss is smooth and strongly "
        "convex in y, or pass a y nearer to its minimum."
    )


def refine(solves: FederatedSolves, server: SurveyState, goal: float) -> SurveyState:
    """Return a state nearer to y*(x), or the same state if rounding prevents it.

    Args:
        solves: the solves over exchanges.
        server: state near y*(x), with ∇y ḡ.
        goal: ‖∇y ḡ‖ to reach, relative to the current value.

    Raises:
        ObstacleError: if the lower loss is not convex or too ill-conditioned.
    """
    first = norm(server.gradient)
    for _ in range(NEWTON_STEPS):
        size = norm(server.gradient)
        share = size / first if first else 0.0
        solves.report_residual(Stage.LOWER, share, goal)
        if share <= goal:
            break
        step = _newton_step(solves, server, share, goal)
        nearer: SurveyState = solves.session.ask(
            Question.GRADIENT, server._replace(y=tree.subtract(server.y, step))
        )
        if norm(nearer.gradient) > STALLED * size:
            break
        server = nearer
    return server


def _newton_step(
    solves: FederatedSolves, server: SurveyState, share: float, goal: float
) -> Lower:
    # The product is the gradient after the step if the lower loss is quadratic.
    return solves.conjugate_gradients(
        server, server.gradient, Stage.LOWER, NEWTON_RESIDUAL, share, goal
    ).solution


def _damped_step(
    solves: FederatedSolves, server: SurveyState, step: Lower, size: float
) -> SurveyState:
    # ‖∇y ḡ‖ falls along a Newton step if the Hessian is invertible, and is less
    # sensitive to rounding than the loss.
    rate = 1.0
    for _ in range(HALVINGS):
        candidate: SurveyState = solves.session.ask(
            Question.GRADIENT,
            server._replace(y=tree.add_scaled(server.y, -rate, step)),
        )
        if norm(candidate.gradient) <= (1 - 0.1 * rate) * size:
            return candidate
        rate /= 2
    raise ArithmeticError(
        "Newton steps did not converge to y*(x): no fraction of a step lowers ‖∇y g‖, "
        f"which is {size:.2g}. Check that lower_loss is smooth and strongly convex in "
        "y."
    )
