"""Federated steps on the lower problem alone, before an algorithm begins."""

from dataclasses import dataclass, field

from fedbilevel.algorithms.protocol import Phase
from fedbilevel.algorithms.settings import check_counts
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


@tree.register
@dataclass(frozen=True)
class WarmStart:
    """Brings y near y*(x) at the first x, as Algorithm 2 asks of its start.

    Attributes:
        learning_rate: of the local gradient steps on g.
        exchanges: how often devices average.
        local_steps: steps between two averages.
        batch_size: examples in a step's batch.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: y**2
        >>> warm_start = WarmStart(learning_rate=0.1, exchanges=5, local_steps=10)
        >>> len(warm_start.phases(BilevelProblem(loss, loss)))
        5
    """

    learning_rate: tree.Rate
    exchanges: int = field(default=1, metadata={"static": True})
    local_steps: int = field(default=1, metadata={"static": True})
    batch_size: int = field(default=1, metadata={"static": True})

    def __post_init__(self) -> None:
        check_counts(self)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return one phase an exchange; the server's state needs fields x and y."""

        def step(
            carry: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Upper, Lower]:
            x, y = carry
            (batch,) = data.lower.draw(key, self.batch_size, draws=1)
            gradient = problem.lower_gradient(x, y, batch)
            return x, tree.add_scaled(y, -self.learning_rate, gradient)

        phase = Phase(
            steps=self.local_steps,
            broadcast=lambda server: (server.x, server.y),
            start=lambda downlink, private, data, key: downlink,
            step=step,
            finish=lambda carry, downlink, key: (carry[1], (), {}),
            server=lambda server, mean: server._replace(y=mean),
        )
        return (phase,) * self.exchanges
