"""LocalBSGVRM: LocalBSGM with momentum-based variance reduction (Algorithm 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fedbilevel.algorithms.momentum import (
    MomentumState,
    corrected,
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
    Count,
    LocalSteps,
    LowerRate,
    SquaredMixing,
    UpperRate,
    register,
)
from fedbilevel.theory.scaling import LOCAL_BSGVRM_LAW, ScalingLaw


@register
@dataclass(frozen=True)
class LocalBSGVRM:
    """Algorithm 2 of the paper: `LocalBSGM` with momentum-based variance reduction.

    Every step evaluates its sample at two points, so it needs twice the gradients of
    `LocalBSGM` per step, and fewer steps. Like `LocalBSGM` it follows the mean of the
    local hypergradients, which is correct if devices are homogeneous (Lemma 1).

    Attributes:
        learning_rate: η, a number or a schedule of the global step.
        hypergradient: the estimator; the paper's is `NeumannSeries`.
        upper_rate: ρ_1, factor of η for x.
        lower_rate: ρ_2, factor of η for y.
        upper_mixing: α; αη² is the weight that the old estimate of x's direction loses,
            at most 1.
        lower_mixing: β; βη² is the same weight for y's direction, at most 1.
        local_steps: p, steps between two exchanges.
        batch_size: examples in each batch of a step; 1 in the paper.
        initial_batch_size: B, examples in each batch of the first estimate.
        warm_start: steps on y alone before the first round; the paper starts at y*(x).

    References:
        Gao, On the Convergence of Momentum-Based Algorithms for Federated Bilevel
        Optimization Problems, Algorithm 2 and Theorems 2 and 3.
    """

    learning_rate: schedules.LearningRate
    hypergradient: Hypergradient
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    upper_mixing: SquaredMixing = 1.0
    lower_mixing: SquaredMixing = 1.0
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    initial_batch_size: Count = 1
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def scaling_law(self) -> ScalingLaw:
        """The powers of the corollaries for Algorithm 2."""
        return LOCAL_BSGVRM_LAW

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """Devices need lower examples for their own hypergradients."""
        return {Conflict.UPPER_ONLY: LOCAL_HYPERGRADIENT.format(name="LocalBSGVRM")}

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[MomentumState, Private]:
        """Return the initial state; devices have no private state."""
        return initial_state(x, y), ()

    def moved_by_server(self, state: MomentumState) -> MomentumState:
        """Return the state with `origin` set to the x of its estimates."""
        return state._replace(origin=state.x)

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round, with first estimates from `initial_batch_size`."""
        (phase,) = self.phases(problem)
        first = opening_phase(
            phase,
            partial(estimate, problem, self.hypergradient),
            partial(self._draw, batch_size=self.initial_batch_size),
        )
        return (*(self.warm_start.phases(problem) if self.warm_start else ()), first)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: p local steps, then an average."""

        def step(
            state: MomentumState, data: DeviceData, key: RandomKey
        ) -> MomentumState:
            x, y, u, v, t, origin = state
            eta = schedules.rate_at(self.learning_rate, t)
            new_x = tree.add_scaled(x, -self.upper_rate * eta, u)  # x_{t+1}, line 10
            new_y = tree.add_scaled(y, -self.lower_rate * eta, v)  # y_{t+1}, line 10
            samples = self._draw(data, key, batch_size=self.batch_size)
            at = partial(estimate, problem, self.hypergradient, samples=samples)
            new_hypergradient, new_gradient = at(new_x, new_y)
            # After a step of the server's optimiser, estimates belong to the old x.
            old_x = x if origin is None else origin
            old_hypergradient, old_gradient = at(old_x, y)
            forget = self.upper_mixing * eta * eta, self.lower_mixing * eta * eta
            u = corrected(u, old_hypergradient, forget[0], new_hypergradient)  # line 7
            v = corrected(v, old_gradient, forget[1], new_gradient)  # line 8
            origin = None if origin is None else new_x
            return MomentumState(new_x, new_y, u, v, t + 1, origin)

        return (local_phase(self.local_steps, step, self.upper_rate),)

    def _draw(self, data: DeviceData, key: RandomKey, batch_size: int) -> Samples:
        return draw_samples(data, key, batch_size, self.hypergradient.curvature_draws)
