"""A survey of hypergradients: the global one and the mean of the devices' own."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax

from fedbilevel.algorithms import questions
from fedbilevel.algorithms.draws import draw_hypergradient_samples
from fedbilevel.algorithms.protocol import Phase
from fedbilevel.algorithms.settings import check_counts
from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class SurveyState(NamedTuple):
    """What the server knows after each exchange of a survey.

    Attributes:
        x: where the survey is made.
        y: where the survey is made.
        slope_before: ∇y ḡ before the warm start.
        slope: ∇y ḡ where the survey is made, after the warm start.
        right_side: ∇y f̄.
        power: (I − θH̄)ⁿ ∇y f̄ after n products.
        total: the sum of the powers so far.
        direct: ∇x f̄.
        indirect: J̄ θ Σ_n (I − θH̄)ⁿ ∇y f̄; direct − indirect is the hypergradient.
        own: the mean over devices of ∇x f_k − J_k θ Σ_n (I − θH_k)ⁿ ∇y f_k.
        step: of the warm start, while it lasts.

    Example:
        >>> SurveyState(*range(11)).own
        9
    """

    x: Upper
    y: Lower
    slope_before: Lower
    slope: Lower
    right_side: Lower
    power: Lower
    total: Lower
    direct: Upper
    indirect: Upper
    own: Upper
    step: schedules.Step


@tree.register
@dataclass(frozen=True)
class Survey:
    """Moves nothing: each round estimates both hypergradients at one point (x, y).

    Both use the same truncated series, so what separates them is not the truncation but
    that the one averages inside the inverse Hessian and the other outside it. Devices
    share Hessian products and hypergradients, as they would in a run.

    Attributes:
        series: Q and θ of both estimates.
        batch_size: examples in every batch.
        warm_start: brings y near y*(x) before the first round, if given.

    Example:
        >>> from fedbilevel import BilevelProblem, NeumannSeries
        >>> loss = lambda x, y, batch: y**2
        >>> survey = Survey(NeumannSeries(terms=5, scale=0.5), batch_size=32)
        >>> len(survey.phases(BilevelProblem(loss, loss)))
        8
    """

    series: NeumannSeries
    batch_size: int = field(default=32, metadata={"static": True})
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        check_counts(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[SurveyState, tuple[()]]:
        """Return the point, nothing known about it; devices keep nothing."""
        nothing, none = tree.scale(0.0, y), tree.scale(0.0, x)
        return SurveyState(x, y, *(nothing,) * 5, *(none,) * 3, step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the warm start, watched, if there is one; and a round like any."""
        if self.warm_start is None:
            return ()

        def slope(name: str) -> Phase:
            return questions.ask(
                lambda server: (server.x, server.y),
                questions.lower_gradient(problem, self.batch_size),
                lambda server, mean: server._replace(**{name: mean}),
            )

        warm_start = self.warm_start.phases(problem)
        watched = slope("slope_before"), *warm_start, slope("slope")
        return *watched, *self.phases(problem)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchanges for the one estimate and the exchange for the other."""
        size, scale = self.batch_size, self.series.scale

        def own(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> Upper:
            samples = draw_hypergradient_samples(data, key, size, self.series)
            return self.series(problem, *downlink, samples)

        def parts(
            downlink: tuple[Upper, Lower, Lower], data: DeviceData, key: RandomKey
        ) -> tuple[Upper, Upper]:
            x, y, r = downlink
            upper_key, lower_key = jax.random.split(key)
            (upper,) = data.upper.draw(upper_key, size, draws=1)
            (lower,) = data.lower.draw(lower_key, size, draws=1)
            direct, _ = problem.upper_gradients(x, y, upper)
            return direct, problem.cross_product(x, y, lower, r)

        right_side = questions.ask(
            lambda server: (server.x, server.y),
            questions.upper_gradient(problem, size),
            lambda server, mean: server._replace(
                right_side=mean, power=mean, total=mean
            ),
        )
        product = questions.ask(
            lambda server: (server.x, server.y, server.power),
            questions.next_power(problem, size, scale),
            lambda server, mean: server._replace(
                power=mean, total=tree.add_scaled(server.total, 1.0, mean)
            ),
        )
        hypergradient = questions.ask(
            lambda server: (server.x, server.y, tree.scale(scale, server.total)),
            parts,
            lambda server, mean: server._replace(direct=mean[0], indirect=mean[1]),
        )
        alone = questions.ask(
            lambda server: (server.x, server.y),
            own,
            lambda server, mean: server._replace(own=mean),
        )
        return (right_side, *(product,) * self.series.terms, hypergradient, alone)
