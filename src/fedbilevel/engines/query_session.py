"""Single exchanges with all devices, in an order that the caller decides."""

from typing import Any

import jax
import numpy as np

from fedbilevel.algorithms.protocol import Server
from fedbilevel.data.weights import names_of
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.preparation import participants_of
from fedbilevel.engines.protocol import Moment, Report, RunState
from fedbilevel.engines.run import Run, prepare_arrays


class QuerySession:
    """Exchanges with all devices through an engine, outside the rounds of a run.

    A run repeats the same phases. Here the caller reads the result of an exchange
    before it chooses the next phase.

    Args:
        run: run whose algorithm has the questions as phases; devices keep no state.

    Attributes:
        server: the first server state.
        costs: costs of all exchanges so far.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.metrics.survey import Question, Survey
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> devices = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))] * 2)
        >>> inputs = BilevelProblem(loss, loss), Survey(), devices, 1.0, 3.0
        >>> session = QuerySession(Run(*inputs, rounds=1))
        >>> float(session.ask(Question.GRADIENT, session.server).gradient)
        4.0
    """

    def __init__(self, run: Run) -> None:
        prepared = prepare_arrays(run)
        self._engine = run.engine
        self._job, state = run.engine.begin(prepared.job, prepared.state)
        self._private = state.private
        self._participants = participants_of(
            0, np.arange(run.devices.device_count), prepared.weights
        )
        self.server: Any = state.server
        self.costs = Costs()

    def ask(self, question: int, server: Server) -> Server:
        """Return the server state after an exchange.

        Args:
            question: index of the phase among the algorithm's phases.
            server: server state before the exchange, of the form of the first state.

        Raises:
            ArithmeticError: if the upload of a device is not finite.
            RuntimeError: if a device of a federation did not reply.
        """
        server = jax.tree.map(
            lambda leaf, first: jax.numpy.asarray(leaf, first.dtype),
            server,
            self.server,
        )
        reference = self._job.phases[question]
        moment = Moment(self.costs.exchanges, 0)
        state, report = self._engine.exchange(
            self._job,
            reference,
            moment,
            RunState(server, self._private),
            self._participants,
        )
        contacted = int(report.present.sum())
        self.costs = self.costs.plus(self._job.costs[reference].times(contacted))
        self._require_all(report, contacted)
        return state.server

    def _require_all(self, report: Report, contacted: int) -> None:
        number = self.costs.exchanges
        remedy = "A diagnosis needs every device: repeat it when all devices reply."
        if report.reasons:
            device = min(report.reasons)
            name = names_of(self._job.devices)[device]
            raise RuntimeError(
                f"Exchange {number}: device {name} {report.reasons[device]}. {remedy}"
            )
        if len(report.excluded):
            name = names_of(self._job.devices)[report.excluded[0]]
            raise ArithmeticError(
                f"Exchange {number}: the upload of device {name} is not finite. "
                "Look for examples that are not finite, or pass another x and y."
            )
        expected = len(self._participants.present)
        if contacted < expected:
            raise RuntimeError(
                f"Exchange {number}: {contacted} of {expected} devices were contacted. "
                f"{remedy}"
            )
