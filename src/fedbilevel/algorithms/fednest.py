"""FedNest: average gradients and inverse-Hessian products within every round."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
from jaxtyping import Int

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.protocol import Carry, Phase, Upload
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import arrays, keys, schedules, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    BatchSize,
    Count,
    LocalSteps,
    LowerRate,
    Repeats,
    Role,
    Switch,
    UpperRate,
    register,
)


class FedNestState(NamedTuple):
    """The server's state between the exchanges of a round.

    Attributes:
        x: upper variable.
        y: lower variable.
        lower_gradient: q, the mean ∇y g at (x, y).
        power: (I − θH̄)ⁿ ∇y f̄ after n products.
        total: sum of the powers so far.
        products: N′, the random number of powers, if `random_truncation` is set.
        number: n.
        hypergradient: h.
        step: number of local steps on x so far.
    """

    x: Upper
    y: Lower
    lower_gradient: Lower
    power: Lower
    total: Lower
    products: int | Int[Array, ""]
    number: int | Int[Array, ""]
    hypergradient: Upper
    step: schedules.Step


@register
@dataclass(frozen=True)
class FedNest:
    """Many small exchanges per round: corrected steps on y, then H̄⁻¹, then steps on x.

    A round updates y `lower_rounds` times: the mean gradient q is exchanged, devices
    make steps on ∇y g(y_k; ζ) − ∇y g(y; ζ) + q, and the y_k are averaged. It solves
    r ≈ H̄⁻¹ ∇y f̄ by a series, averages every product of the series, exchanges the
    hypergradient h = mean(∇x f − J r), and makes steps on
    h + ∇x f(x_k; ξ) − ∇x f(x; ξ). The inverse is that of the mean Hessian, so it is
    correct on heterogeneous devices with full participation. The exchanges of a round
    share a cohort, and with sampled devices the inverse of the cohort's mean is biased.

    Attributes:
        learning_rate: factor of both rates; a number or a schedule.
        series: θ = 1/ℓ and the number of products, N − 1; each is an exchange.
        upper_rate: rate of the steps on x.
        lower_rate: rate of the steps on y.
        lower_rounds: T, the number of updates of y in a round.
        lower_steps: local steps on y between two averages.
        local_steps: local steps on x between two averages.
        batch_size: examples in every batch.
        random_truncation: the paper's rule: draw N′ uniformly from 0 … N − 1 and use
            r = N θ (I − θH̄)^N′ ∇y f̄, which has the expectation of the series. The
            exchanges after N′ have no effect but are counted.

    References:
        Tarzanagh, Li, Thrampoulidis and Oymak, FedNest: Federated Bilevel, Minimax, and
        Compositional Optimization, arXiv 2205.02215.

    Example:
        >>> from fedbilevel import BilevelProblem, FedNest, NeumannSeries
        >>> loss = lambda x, y, batch: y**2
        >>> algorithm = FedNest(learning_rate=0.1, series=NeumannSeries(5, 0.5))
        >>> len(algorithm.phases(BilevelProblem(loss, loss)))  # 2 y, 6 r, 2 x
        10
    """

    learning_rate: schedules.LearningRate
    series: Annotated[NeumannSeries, Role.MEAN_SERIES]
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    lower_rounds: Repeats = 1
    lower_steps: Count = 1
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    random_truncation: Switch = False

    def __post_init__(self) -> None:
        check_settings(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[FedNestState, tuple[()]]:
        """Return the initial state; devices have no private state."""
        zero_y, zero_x = tree.scale(0.0, y), tree.scale(0.0, x)
        return FedNestState(x, y, zero_y, zero_y, zero_y, 0, 0, zero_x, step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchanges for y, for the inverse Hessian and for x."""
        size, scale = self.batch_size, self.series.scale
        gradient = queries.ask(
            "lower gradient",
            lambda server: (server.x, server.y),
            queries.lower_gradient(problem, size),
            lambda server, mean, key: server._replace(lower_gradient=mean),
            like=lambda downlink: downlink[1],
        )
        right_side = queries.ask(
            "upper gradient",
            lambda server: (server.x, server.y),
            queries.upper_gradient(problem, size),
            self._begin_series,
            like=lambda downlink: downlink[1],
        )
        product = queries.ask(
            "next power",
            lambda server: (server.x, server.y, server.power),
            queries.next_power(problem, size, scale),
            self._next_power,
            like=lambda downlink: downlink[2],
        )
        hypergradient = queries.ask(
            "hypergradient",
            lambda server: (server.x, server.y, self._inverse_product(server)),
            queries.hypergradient(problem, size),
            lambda server, mean, key: server._replace(hypergradient=mean),
            like=lambda downlink: downlink[0],
        )
        return (
            *(gradient, self._lower_steps(problem)) * self.lower_rounds,
            right_side,
            *(product,) * self.series.terms,
            hypergradient,
            self._upper_steps(problem),
        )

    def _lower_steps(self, problem: BilevelProblem) -> Phase:
        def step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            local_y, (x, y, q, t) = carry
            (batch,) = data.lower.draw(key, self.batch_size, draws=1)
            change = tree.subtract(
                problem.lower_gradient(x, local_y, batch),
                problem.lower_gradient(x, y, batch),
            )
            rate = self.lower_rate * schedules.rate_at(self.learning_rate, t)
            direction = tree.add_scaled(change, 1.0, q)
            return tree.add_scaled(local_y, -rate, direction), carry[1]

        return Phase(
            name="lower steps",
            steps=self.lower_steps,
            broadcast=lambda s: (s.x, s.y, s.lower_gradient, s.step),
            start=lambda downlink, private, data, key: (downlink[1], downlink),
            step=step,
            finish=lambda carry, downlink, key: (Upload((carry[0],)), (), {}),
            server=lambda server, mean, key: server._replace(y=mean.update[0]),
            reference=lambda downlink: (downlink[1],),
        )

    def _upper_steps(self, problem: BilevelProblem) -> Phase:
        def step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            local_x, (x, y, h, t) = carry
            (batch,) = data.upper.draw(key, self.batch_size, draws=1)
            new, _ = problem.upper_gradients(local_x, y, batch)
            old, _ = problem.upper_gradients(x, y, batch)
            direction = tree.add_scaled(tree.subtract(new, old), 1.0, h)
            rate = self.upper_rate * schedules.rate_at(self.learning_rate, t)
            return tree.add_scaled(local_x, -rate, direction), carry[1]

        return Phase(
            name="upper steps",
            steps=self.local_steps,
            broadcast=lambda s: (s.x, s.y, s.hypergradient, s.step),
            start=lambda downlink, private, data, key: (downlink[0], downlink),
            step=step,
            finish=lambda carry, downlink, key: (Upload((carry[0],)), (), {}),
            server=lambda server, mean, key: server._replace(
                x=tree.keep_fixed(self.upper_rate, server.x, mean.update[0]),
                step=server.step + self.local_steps,
            ),
            reference=lambda downlink: (downlink[0],),
        )

    def _begin_series(
        self, server: FedNestState, mean: Lower, key: RandomKey
    ) -> FedNestState:
        products = keys.integer(key, self.series.terms + 1)
        return server._replace(power=mean, total=mean, products=products, number=0)

    def _next_power(
        self, server: FedNestState, mean: Lower, key: RandomKey
    ) -> FedNestState:
        number = server.number + 1
        power = mean
        if self.random_truncation:
            xp = arrays.namespace(mean)
            is_used = xp.asarray(number <= server.products)
            power = jax.tree.map(
                lambda new, old: xp.where(is_used, new, old), mean, server.power
            )
        total = tree.add_scaled(server.total, 1.0, power)
        return server._replace(power=power, total=total, number=number)

    def _inverse_product(self, server: FedNestState) -> Lower:
        if self.random_truncation:
            factor = (self.series.terms + 1) * self.series.scale
            return tree.scale(factor, server.power)
        return tree.scale(self.series.scale, server.total)
