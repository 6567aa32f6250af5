"""LocalBSGM: local bilevel stochastic gradient descent with momentum (Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from jaxtyping import PyTree

from fedbilevel.algorithms.momentum import (
    MomentumState,
    estimate,
    initial_state,
    local_phase,
    opening_phase,
)
from fedbilevel.algorithms.optional import LOCAL_HYPERGRADIENT, Conflict
from fedbilevel.algorithms.protocol import Phase, Private
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.hypergradients import Hypergradient, Samples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    BatchSize,
    LocalSteps,
    LowerMixing,
    LowerRate,
    Mixing,
    UpperRate,
    register,
)
from fedbilevel.theory.scaling import LOCAL_BSGM_LAW, ScalingLaw


@register
@dataclass(frozen=True)
class LocalBSGM:
    """Algorithm 1 of the paper: moving averages of both stochastic gradients.

    It follows the mean of the local hypergradients. This equals the hypergradient of
    the federated problem only if devices are homogeneous, as the paper assumes
    (Lemma 1); otherwise it converges to a biased point.

    Attributes:
        learning_rate: η, a number or a schedule of the global step.
        hypergradient: the estimator; the paper's is `NeumannSeries`.
        upper_rate: ρ_1, factor of η for x.
        lower_rate: ρ_2, factor of η for y.
        upper_mixing: α; αη is the weight of a fresh hypergradient, at most 1.
        lower_mixing: β; βη is the weight of a fresh lower gradient, at most 1.
        local_steps: p, steps between two exchanges.
        batch_size: examples in each batch of a step; 1 in the paper.
        warm_start: steps on y alone before the first round, if any.

    References:
        Gao, On the Convergence of Momentum-Based Algorithms for Federated Bilevel
        Optimization Problems, Algorithm 1 and Theorem 1.
    """

    learning_rate: schedules.LearningRate
    hypergradient: Hypergradient
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    upper_mixing: Mixing = 1.0
    lower_mixing: LowerMixing = 1.0
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def scaling_law(self) -> ScalingLaw:
        """The powers of the corollaries for Algorithm 1."""
        return LOCAL_BSGM_LAW

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """Devices need lower examples for their own hypergradients."""
        return {Conflict.UPPER_ONLY: LOCAL_HYPERGRADIENT.format(name="LocalBSGM")}

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[MomentumState, Private]:
        """Return the initial state; devices have no private state."""
        return initial_state(x, y), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round, in which devices compute their first estimates."""
        (phase,) = self.phases(problem)
        first = opening_phase(
            phase, partial(estimate, problem, self.hypergradient), self._draw
        )
        return (*(self.warm_start.phases(problem) if self.warm_start else ()), first)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: p local steps, then an average."""

        def step(
            state: MomentumState, data: DeviceData, key: RandomKey
        ) -> MomentumState:
            x, y, u, v, t, _ = state
            eta = schedules.rate_at(self.learning_rate, t)
            x = tree.add_scaled(x, -self.upper_rate * eta, u)  # x_{t+1}, line 10
            y = tree.add_scaled(y, -self.lower_rate * eta, v)  # y_{t+1}, line 10
            hypergradient, gradient = estimate(
                problem, self.hypergradient, x, y, self._draw(data, key)
            )
            u = _moving_average(u, self.upper_mixing * eta, hypergradient)  # line 7
            v = _moving_average(v, self.lower_mixing * eta, gradient)  # line 8
            return MomentumState(x, y, u, v, t + 1)

        return (local_phase(self.local_steps, step, self.upper_rate),)

    def _draw(self, data: DeviceData, key: RandomKey) -> Samples:
        return draw_samples(
            data, key, self.batch_size, self.hypergradient.curvature_draws
        )


def _moving_average(old: PyTree, weight: tree.Scalar, fresh: PyTree) -> PyTree:
    return tree.add_scaled(tree.scale(1 - weight, old), weight, fresh)
