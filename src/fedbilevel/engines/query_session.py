"""Questions to all devices, one exchange at a time, in an order the caller decides."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Server
from fedbilevel.data.devices import Devices
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.preparation import RunSpec, participants_of, prepare
from fedbilevel.engines.protocol import Engine, Moment, RunState
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class QuerySession:
    """Exchanges with all devices through an engine, outside the rounds of a run.

    A run repeats the same phases; here whoever asks looks at an answer before choosing
    the next phase.

    Args:
        problem: the two losses.
        algorithm: its phases are the questions; devices must keep nothing.
        devices: the data.
        x: the upper variable of the first state.
        y: the lower variable of the first state.
        seed: of the devices' random choices.
        weights: of the devices, as given to `run`.
        engine: where the devices' work is done.

    Attributes:
        server: the server's first state.
        costs: what was spent so far.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel import Simulation
        >>> from fedbilevel.metrics.survey import Question, Survey
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> devices = InMemoryDevices([LocalExamples(np.ones(3), np.ones(3))] * 2)
        >>> inquiry = QuerySession(
        ...     BilevelProblem(loss, loss), Survey(), devices, 1.0, 3.0, seed=0,
        ...     weights=None, engine=Simulation(),
        ... )
        >>> float(inquiry.ask(Question.GRADIENT, inquiry.server).gradient)
        4.0
    """

    def __init__(
        self,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        devices: Devices,
        x: Upper,
        y: Lower,
        *,
        seed: int,
        weights: ArrayLike | None,
        engine: Engine,
    ) -> None:
        spec = RunSpec(
            problem, algorithm, devices, x, y, seed=seed, weights=weights, engine=engine
        )
        prepared = prepare(spec)
        self._engine = engine
        self._job, state = engine.begin(prepared.job, prepared.state)
        self._private = state.private
        self._participants = participants_of(
            0, np.arange(devices.device_count), prepared.weights
        )
        self.server: Any = state.server
        self.costs = Costs()

    def ask(self, question: int, server: Server) -> Server:
        """Return the server's state after an exchange.

        Args:
            question: the place of the phase among the algorithm's phases.
            server: the state before it, of the form of the first state.

        Raises:
            ArithmeticError: if a device's answer is not finite.
            RuntimeError: if a device of a federation did not answer.
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
        asked = int(report.present.sum())
        self.costs = self.costs.plus(self._job.costs[reference].times(asked))
        self._require_everyone(report.excluded.tolist(), report.reasons, asked)
        return state.server

    def _require_everyone(self, left_out: list[int], reasons: Any, asked: int) -> None:
        number = self.costs.exchanges
        if reasons:
            device = min(reasons)
            raise RuntimeError(
                f"exchange {number}: device {device} {reasons[device]}; a diagnosis "
                "needs every device, so repeat it when all of them answer."
            )
        if left_out:
            raise ArithmeticError(
                f"exchange {number}: the answer of device {left_out[0]} is not finite; "
                "look for examples that are not finite, or ask at another point."
            )
        expected = len(self._participants.present)
        if asked < expected:
            raise RuntimeError(
                f"exchange {number}: {asked} of {expected} devices were contacted; a "
                "diagnosis needs every device, so repeat it when all of them answer."
            )
