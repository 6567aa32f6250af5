"""Warm start: federated steps on the lower problem before an algorithm starts."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fedbilevel.algorithms.protocol import Phase, Server, Upload
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Count, Repeats, Role, register

_Work: TypeAlias = tuple[Upper, Lower, schedules.Step | None]


@register
@dataclass(frozen=True)
class WarmStart:
    """Federated steps on y that approach y*(x) at the initial x, as for Algorithm 2.

    Attributes:
        learning_rate: rate of the local gradient steps on g; a number, or a schedule of
            the steps of the warm start. The algorithm counts its steps from 0 again.
        exchanges: number of averages.
        local_steps: steps between two averages.
        batch_size: examples in a step's batch.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: y**2
        >>> warm_start = WarmStart(learning_rate=0.1, exchanges=5, local_steps=10)
        >>> len(warm_start.phases(BilevelProblem(loss, loss)))
        5
    """

    learning_rate: Annotated[schedules.LearningRate, Role.WARM_START]
    exchanges: Repeats = 1
    local_steps: Count = 1
    batch_size: Count = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return one phase per exchange; the server needs fields x, y and step."""
        rate = self.learning_rate
        counts = callable(rate)

        def step(carry: _Work, data: DeviceData, key: RandomKey) -> _Work:
            x, y, t = carry
            (batch,) = data.lower.draw(key, self.batch_size, draws=1)
            gradient = problem.lower_gradient(x, y, batch)
            eta = schedules.rate_at(rate, 0 if t is None else t)
            y = tree.add_scaled(y, -eta, gradient)
            return x, y, None if t is None else t + 1

        def server(server: Server, mean: Upload, key: RandomKey) -> Server:
            if not counts:
                return server._replace(y=mean.update[0])
            return server._replace(
                y=mean.update[0], step=server.step + self.local_steps
            )

        phase = Phase(
            name="warm start",
            steps=self.local_steps,
            # Only a schedule needs the step.
            broadcast=lambda server: (
                server.x,
                server.y,
                server.step if counts else None,
            ),
            start=lambda downlink, private, data, key: downlink,
            step=step,
            finish=lambda carry, downlink, key: (Upload((carry[1],)), (), {}),
            server=server,
            reference=lambda downlink: (downlink[1],),
        )
        if not counts:
            return (phase,) * self.exchanges
        # The algorithm counts its steps from 0.
        last = phase._replace(
            name="end of the warm start",
            server=lambda server, mean, key: server._replace(
                y=mean.update[0], step=0 * server.step
            ),
        )
        return *(phase,) * (self.exchanges - 1), last
