"""y*(x) by Newton steps over exchanges."""

from collections.abc import Callable
from functools import partial

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Lower
from fedbilevel.metrics.federated_solves import FederatedSolves, norm
from fedbilevel.metrics.obstacles import Stage
from fedbilevel.metrics.survey import Question, SurveyState

NEWTON_STEPS = 50
NEWTON_RESIDUAL = 1e-3
"""Of the linear system of a Newton step, relative to the gradient."""
LOWER_RESIDUAL = 1e-9
"""‖∇y ḡ‖ near y*(x), relative to the terms that cancel in it there."""
SMALLEST_STEP = 1e-10
"""A Newton step so short, relative to y or to the way so far, is near y*(x)."""
STALLED = 0.5
"""A Newton step near y*(x) that leaves more of ‖∇y ḡ‖ has met rounding."""
HALVINGS = 30


def lower_solution(solves: FederatedSolves, server: SurveyState) -> SurveyState:
    """Return the state near y*(x), by damped Newton steps from y.

    Args:
        solves: the exchanges.
        server: where Newton's method begins.

    Raises:
        ObstacleError: if the lower loss is not convex or too ill-conditioned.
        ArithmeticError: if Newton steps do not lead to a minimum.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel import Simulation
        >>> from fedbilevel.metrics.survey import Survey
        >>> from fedbilevel.engines.query_session import QuerySession
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> devices = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))] * 2)
        >>> inquiry = QuerySession(
        ...     BilevelProblem(loss, loss), Survey(), devices, 2.0, 3.0, seed=0,
        ...     weights=None, engine=Simulation(),
        ... )
        >>> solves = FederatedSolves(inquiry, Survey(), lambda progress: None)
        >>> float(lower_solution(solves, inquiry.server).y)
        2.0
    """
    start = server.y
    server = solves.inquiry.ask(Question.GRADIENT, server)
    for _ in range(NEWTON_STEPS):
        # Relative to the terms at this y: a far start must not end the search early.
        size, terms = norm(server.gradient), solves.gradient_terms(server)
        share = size / terms if terms else 0.0
        solves.tell(Stage.LOWER, share, LOWER_RESIDUAL)
        if share <= LOWER_RESIDUAL:
            return server
        step = _newton_step(solves, server, partial(_tell, solves, share))
        way = norm(tree.subtract(server.y, start))
        # Where y*(x) = 0, the terms of the gradient vanish with it.
        if norm(step) <= SMALLEST_STEP * max(norm(server.y), way):
            return server
        server = _damped(solves, server, step, size)
    raise ArithmeticError(
        f"y*(x) was not found in {NEWTON_STEPS} Newton steps: ‖∇y g‖ is "
        f"{norm(server.gradient):.2g}; check that lower_loss is smooth and "
        "strongly convex in y, or ask at a point nearer to its minimum."
    )


def refine(solves: FederatedSolves, server: SurveyState, goal: float) -> SurveyState:
    """Return the state nearer to y*(x), or the same where rounding prevents it.

    Args:
        solves: the exchanges.
        server: near y*(x), with ∇y ḡ.
        goal: ‖∇y ḡ‖ to reach, relative to the present one.

    Raises:
        ObstacleError: if the lower loss is not convex or too ill-conditioned.

    Example:
        >>> refine.__name__
        'refine'
    """
    first = norm(server.gradient)
    for _ in range(NEWTON_STEPS):
        size = norm(server.gradient)
        share = size / first if first else 0.0
        solves.tell(Stage.LOWER, share, goal)
        if share <= goal:
            break
        step = _newton_step(solves, server, partial(_tell, solves, share, goal=goal))
        nearer: SurveyState = solves.inquiry.ask(
            Question.GRADIENT, server._replace(y=tree.subtract(server.y, step))
        )
        if norm(nearer.gradient) > STALLED * size:
            break
        server = nearer
    return server


def _newton_step(
    solves: FederatedSolves, server: SurveyState, tell: Callable[[float], None]
) -> Lower:
    return solves.conjugate_gradients(
        server, server.gradient, Stage.LOWER, NEWTON_RESIDUAL, tell
    ).solution


def _damped(
    solves: FederatedSolves, server: SurveyState, step: Lower, size: float
) -> SurveyState:
    # ‖∇y ḡ‖ falls along a Newton step wherever the Hessian can be inverted, and
    # rounding hides it later than a decrease of the loss.
    rate = 1.0
    for _ in range(HALVINGS):
        candidate: SurveyState = solves.inquiry.ask(
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


def _tell(
    solves: FederatedSolves, share: float, left: float, goal: float = LOWER_RESIDUAL
) -> None:
    # What a Newton step leaves of a quadratic's gradient.
    solves.tell(Stage.LOWER, share * left, goal)
