"""Nine sites of a scalar problem that hold the same examples, and its solution.

x and y are scalars, and z ≈ H⁻¹ ∇y f; there is no noise:

    f = ½ (y − TARGET)² + ½ x²,   g = ½ (y − COUPLING x)².
"""

from collections.abc import Collection
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
SIZE, SIZE_LIMIT, CLAIMED = 8, 9, 2**31 - 1
"""Examples that a site holds, that it may count for, and that a liar claims."""


def upper_loss(x, y, batch):
    return 0.5 * jnp.mean((y - batch) ** 2) + 0.5 * x**2


def lower_loss(x, y, batch):
    return 0.5 * jnp.mean((y - x * batch) ** 2)


PROBLEM = BilevelProblem(upper_loss, lower_loss)


@jax.tree_util.register_static
class MadeOnce:
    """FedBiO, whose phases are the same objects whenever they are asked for.

    The checks of types that tests run with wrap every function of a phase when it is
    made: twice an exchange, which would be a third of the time of these tests.
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
    """Return the sites of all schedules: they know runs by name, and compile once."""
    return {
        name: Site(number, PROBLEM, ALGORITHM, HELD, *START, rules=RULES)
        for number, name in enumerate(NAMES)
    }


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        last: its last round, if it had one.
        records: of its exchanges.
        refusal: why it ended early; empty if it did not.
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
) -> Outcome:
    """Run the federation with all sites, of which some claim too much."""
    enrolments = {
        who: site.enrolment._replace(lower_size=CLAIMED)
        if who in liars
        else site.enrolment
        for who, site in sites().items()
    }
    enrolled = EnrolledDevices(enrolments, form=HELD)
    asked = Experiment(ALGORITHM.inner, weight_by_size=by_size, size_limit=SIZE_LIMIT)
    weights = weights_of(asked, enrolled)
    records: list[Exchange] = []
    engine = Federation(
        transport,
        enrolled,
        run=name,
        timeout=TIMEOUT,
        quorum=quorum,
        straggler_factor=straggler_factor,
        note=records.append,
    )
    given: dict[str, Any] = {"weights": weights, "limits": limits, "engine": engine}
    last, refusal = None, ""
    done = run(PROBLEM, ALGORITHM, enrolled, *START, rounds=rounds, **given)
    try:
        *_, last = done
    except NoQuorumError as error:
        refusal = str(error)
    return Outcome(last, records, refusal)


def error_of(found: np.ndarray) -> float:
    return float(np.max(np.abs(found - HONEST) / WIDTHS))


START_ERROR = error_of(np.array([*START, 0.0]))


def last_error(outcome: Outcome) -> float:
    """Return how far from the solution a run has ended."""
    assert outcome.last is not None
    server = outcome.last.server
    return error_of(np.array([server.x, server.y, server.adjoint]))
