"""Nine sites of a scalar problem with the same examples, and its solution.

x and y are scalars, and z ≈ H⁻¹ ∇y f; there is no noise:

    f = ½ (y − TARGET)² + ½ x²,   g = ½ (y − COUPLING x)².
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    Limits,
    LocalExamples,
    Phase,
    Round,
    run,
)
from fedbilevel.experiments.build import weights_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Exchange,
    Federation,
    NoQuorumError,
    Site,
)
from fedbilevel.federation.transport import Transport
from tests.federation.bad_schedules import TIMEOUT

NAMES = [f"site-{number}" for number in range(9)]
COUPLING, TARGET, RATE = 0.3, 2.0, 0.5
START = 3.0, 1.0
X = COUPLING * TARGET / (1 + COUPLING**2)
HONEST = np.array([X, COUPLING * X, COUPLING * X - TARGET])
Q = COUPLING ** (2 / 3)
WIDTHS = np.array([1.0, COUPLING / Q, COUPLING / Q**2])
"""In these units of x, y and z, errors shrink together: see test_bad_schedules."""
SIZE, SIZE_LIMIT, FALSE_SIZE = 8, 9, 2**31 - 1
"""Examples of a site, the size limit, and the number that a lying site reports."""


def upper_loss(x, y, batch):
    return 0.5 * jnp.mean((y - batch) ** 2) + 0.5 * x**2


def lower_loss(x, y, batch):
    return 0.5 * jnp.mean((y - x * batch) ** 2)


PROBLEM = BilevelProblem(upper_loss, lower_loss)


@jax.tree_util.register_static
class MadeOnce:
    """FedBiO with cached phases.

    The type checks of tests wrap every function of a phase when it is created: twice in
    an exchange, which would be a third of the time of these tests.
    """

    def __init__(self) -> None:
        self.inner = FedBiO(RATE)
        self._phases = self.inner.phases(PROBLEM)

    def init(self, problem: BilevelProblem, x: Any, y: Any) -> Any:
        return self.inner.init(problem, x, y)

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return self._phases


ALGORITHM = MadeOnce()
RULES = replace(REHEARSAL, simulated_draws=False)
HELD = LocalExamples(np.full(SIZE, TARGET), np.full(SIZE, COUPLING))


@cache
def sites() -> dict[str, Site]:
    """Return sites that all schedules share, so that they compile once."""
    return {
        name: Site(number, PROBLEM, ALGORITHM, HELD, *START, rules=RULES)
        for number, name in enumerate(NAMES)
    }


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        last: last round, if there was one.
        records: log of its exchanges.
        refusal: error that ended the run early; empty if none.
    """

    last: Round | None
    records: list[Exchange]
    refusal: str


def carried_out(
    transport: Transport,
    limits: Limits,
    name: str,
    rounds: int,
    *,
    liars: Collection[str] = (),
    by_size: bool = False,
    quorum: int = 1,
    straggler_factor: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run the federation with all sites, some of which report too large sizes."""
    enrolments = {
        who: site.enrolment._replace(lower_size=FALSE_SIZE)
        if who in liars
        else site.enrolment
        for who, site in sites().items()
    }
    enrolled = EnrolledDevices(enrolments, form=HELD)
    request = Experiment(ALGORITHM.inner, weight_by_size=by_size, size_limit=SIZE_LIMIT)
    weights = weights_of(request, enrolled)
    records: list[Exchange] = []
    engine = Federation(
        transport,
        enrolled,
        run=name,
        timeout=TIMEOUT,
        quorum=quorum,
        straggler_factor=straggler_factor,
        note=records.append,
        clock=clock,
    )
    value: dict[str, Any] = {"weights": weights, "limits": limits, "engine": engine}
    last, refusal = None, ""
    result = run(PROBLEM, ALGORITHM, enrolled, *START, rounds=rounds, **value)
    try:
        *_, last = result
    except NoQuorumError as error:
        refusal = str(error)
    return Outcome(last, records, refusal)


def error_of(result: np.ndarray) -> float:
    return float(np.max(np.abs(result - HONEST) / WIDTHS))


START_ERROR = error_of(np.array([*START, 0.0]))


def last_error(outcome: Outcome) -> float:
    """Return the distance of a run's last round from the solution."""
    assert outcome.last is not None
    server = outcome.last.server
    return error_of(np.array([server.x, server.y, server.adjoint]))
