"""LFedNest: FedNest with local estimates and few exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedbilevel.algorithms.optional import LOCAL_HYPERGRADIENT, Conflict
from fedbilevel.algorithms.protocol import Carry, Phase, Upload
from fedbilevel.algorithms.sampling import draw_hypergradient_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.hypergradients import Hypergradient
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    BatchSize,
    Count,
    LocalSteps,
    LowerRate,
    Repeats,
    UpperRate,
    register,
)


class LFedNestState(NamedTuple):
    """The server's state.

    Attributes:
        x: upper variable.
        y: lower variable.
        step: number of local steps on x so far.
    """

    x: Upper
    y: Lower
    step: schedules.Step


@register
@dataclass(frozen=True)
class LFedNest:
    """Local steps on y, then on x along local hypergradients, each with an average.

    No gradient, inverse product or hypergradient is exchanged, so a round needs
    `lower_rounds` + 1 exchanges, many fewer than `FedNest`. Like the paper's two
    algorithms, it follows the mean of the local hypergradients, and converges to a
    biased point if devices are heterogeneous.

    Attributes:
        learning_rate: factor of both rates; a number or a schedule.
        hypergradient: estimator of each device's hypergradient.
        upper_rate: rate of the steps on x.
        lower_rate: rate of the steps on y.
        lower_rounds: T, the number of updates of y in a round.
        lower_steps: local steps on y between two averages.
        local_steps: local steps on x between two averages.
        batch_size: examples in every batch.

    References:
        Tarzanagh, Li, Thrampoulidis and Oymak, FedNest: Federated Bilevel, Minimax, and
        Compositional Optimization, arXiv 2205.02215.

    Example:
        >>> from fedbilevel import BilevelProblem, LFedNest, NeumannSeries
        >>> loss = lambda x, y, batch: y**2
        >>> algorithm = LFedNest(0.1, NeumannSeries(terms=5, scale=0.5), lower_rounds=3)
        >>> len(algorithm.phases(BilevelProblem(loss, loss)))
        4
    """

    learning_rate: schedules.LearningRate
    hypergradient: Hypergradient
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    lower_rounds: Repeats = 1
    lower_steps: Count = 1
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """Devices need lower examples for their own hypergradients."""
        return {Conflict.UPPER_ONLY: LOCAL_HYPERGRADIENT.format(name="LFedNest")}

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[LFedNestState, tuple[()]]:
        """Return the initial state; devices have no private state."""
        return LFedNestState(x, y, step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchanges for y and the exchange for x."""

        def lower_step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            x, y, t = carry
            (batch,) = data.lower.draw(key, self.batch_size, draws=1)
            rate = self.lower_rate * schedules.rate_at(self.learning_rate, t)
            gradient = problem.lower_gradient(x, y, batch)
            return LFedNestState(x, tree.add_scaled(y, -rate, gradient), t)

        def upper_step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            x, y, t = carry
            samples = draw_hypergradient_samples(
                data, key, self.batch_size, self.hypergradient.curvature_draws
            )
            rate = self.upper_rate * schedules.rate_at(self.learning_rate, t)
            direction = self.hypergradient(problem, x, y, samples)
            return LFedNestState(tree.add_scaled(x, -rate, direction), y, t)

        lower = Phase(
            name="lower steps",
            steps=self.lower_steps,
            broadcast=lambda server: server,
            start=lambda downlink, private, data, key: downlink,
            step=lower_step,
            finish=lambda carry, downlink, key: (Upload((carry.y,)), (), {}),
            server=lambda server, mean, key: server._replace(y=mean.update[0]),
            reference=lambda downlink: (downlink.y,),
        )
        upper = lower._replace(
            name="upper steps",
            steps=self.local_steps,
            step=upper_step,
            finish=lambda carry, downlink, key: (Upload((carry.x,)), (), {}),
            reference=lambda downlink: (downlink.x,),
            server=lambda server, mean, key: server._replace(
                x=tree.keep_fixed(self.upper_rate, server.x, mean.update[0]),
                step=server.step + self.local_steps,
            ),
        )
        return (*(lower,) * self.lower_rounds, upper)
