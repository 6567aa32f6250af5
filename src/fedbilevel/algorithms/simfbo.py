"""SimFBO: one exchange per round, with a server step along accumulated directions."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from jaxtyping import Float

from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.protocol import (
    Beside,
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import arrays, schedules, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    AdjointRate,
    BatchSize,
    Count,
    Fraction,
    LocalSteps,
    LowerRate,
    Rate,
    ServerRate,
    UpperRate,
    register,
)


class SimFBOState(NamedTuple):
    """The server's (x, y, z) and the largest possible number of steps of a device."""

    x: Upper
    y: Lower
    adjoint: Lower
    step: schedules.Step


class _Work(NamedTuple):
    point: AdjointPoint
    accumulated: AdjointPoint  # q = Σ_k a^k · direction
    weight: Float[Array, "*devices"]  # ‖a‖₁ so far
    number: Float[Array, "*devices"]  # k
    limit: Float[Array, "*devices"]  # τ_i
    step: schedules.Step


@register
@dataclass(frozen=True)
class SimFBO:
    """Local steps on x, y and z; the server moves along the accumulated directions.

    Device i makes τ_i local steps along the directions of `FedBiO`, weighs step k by
    a_i^k, and uploads q_i = Σ_k a_i^k · direction; the server moves each variable by
    −γ Σ_i p_i q_i and projects z. With one local step per exchange the server's
    direction is the mean of `FedBiO`'s directions, so its fixed points have ∇Φ = 0,
    even on heterogeneous devices.

    If devices make unequal numbers of steps, a device with more steps has more weight:
    the server then minimises Σ_i p_i ‖a_i‖₁ f_i with the lower loss Σ_i p_i ‖a_i‖₁ g_i,
    another problem. `ShroFBO` removes this weight. Directions enter the server's step
    linearly, so the step of a uniform sample of equally weighted devices is unbiased.

    Attributes:
        learning_rate: factor of all three rates; a number or a schedule of the global
            step, constant within a round.
        upper_rate: rate of local steps on x.
        lower_rate: rate of local steps on y.
        adjoint_rate: rate of local steps on z.
        server_rate: γ divided by the local rate; with 1 the server moves to the mean of
            the devices.
        discount: a_i^k = discount^k; with 1 all steps have equal weight.
        adjoint_radius: r, radius of the ball for the server's z.
        local_steps: largest number of local steps of a device.
        batch_size: examples in each of the four batches of a step.
        examples_per_step: if given, a device with n lower examples makes
            min(local_steps, ⌈n / examples_per_step⌉) local steps. The sample counts
            assume `local_steps` on every device.

    References:
        Yang, Xiao and Ji, SimFBO: Towards Simple, Flexible and Communication-efficient
        Federated Bilevel Learning, arXiv 2305.19442.
    """

    learning_rate: schedules.LearningRate
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    adjoint_rate: AdjointRate = 1.0
    server_rate: ServerRate = 1.0
    discount: Fraction = 1.0
    adjoint_radius: Rate | None = None
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    examples_per_step: Count | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[SimFBOState, Private]:
        """Return (x, y, 0); devices have no private state."""
        return SimFBOState(*initial_point(x, y), step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps, then the server's step."""
        return (accumulation_phase(self, problem, normalised=False),)


def accumulation_phase(
    settings: SimFBO, problem: BilevelProblem, normalised: bool
) -> Phase:
    """Return the exchange of `SimFBO`, or of `ShroFBO` if `normalised` is True.

    Example:
        >>> from fedbilevel import BilevelProblem, SimFBO
        >>> loss = lambda x, y, batch: y**2
        >>> problem = BilevelProblem(loss, loss)
        >>> accumulation_phase(SimFBO(0.1, local_steps=4), problem, False).steps
        4
    """

    def rates(step: schedules.Step) -> AdjointPoint:
        eta = schedules.rate_at(settings.learning_rate, step)
        factors = settings.upper_rate, settings.lower_rate, settings.adjoint_rate
        return AdjointPoint(*(factor * eta for factor in factors))

    def start(
        downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
    ) -> _Work:
        point = AdjointPoint(*downlink[:3])
        zeros = AdjointPoint(*(tree.scale(0.0, variable) for variable in point))
        zero = arrays.number(0.0, like=point)
        limit = zero + settings.local_steps
        if settings.examples_per_step is not None:
            xp = arrays.namespace(limit)
            size = arrays.number(data.lower.size, like=point)
            limit = xp.minimum(limit, xp.ceil(size / settings.examples_per_step))
        return _Work(point, zeros, zero, zero, limit, downlink.step)

    def step(work: _Work, data: DeviceData, key: RandomKey) -> _Work:
        point, accumulated, total, number, limit, t = work
        power = settings.discount**number
        weight = arrays.namespace(power).where(number < limit, power, 0.0)  # a_i^k
        samples = draw_samples(data, key, settings.batch_size)
        along = directions(problem, point, samples)
        lengths = AdjointPoint(*(weight * rate for rate in rates(t)))
        return _Work(
            descend(point, lengths, along, radius=None),
            AdjointPoint(
                *(
                    tree.add_scaled(q, weight, direction)
                    for q, direction in zip(accumulated, along, strict=True)
                )
            ),
            total + weight,
            number + 1,
            limit,
            t,
        )

    def finish(
        work: _Work, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        info = {"local_steps": work.limit}
        if normalised:
            share = tree.scale(1 / work.weight, work.accumulated)
            return Upload(share, work.weight), (), info
        return Upload(work.accumulated), (), info

    def server(server: SimFBOState, mean: Upload, key: RandomKey) -> SimFBOState:
        factor = settings.server_rate * (mean.beside if normalised else 1.0)
        lengths = AdjointPoint(*(factor * rate for rate in rates(server.step)))
        point = AdjointPoint(*server[:3])
        along = AdjointPoint(*mean.update)
        x, y, z = descend(point, lengths, along, settings.adjoint_radius)
        return SimFBOState(x, y, z, server.step + settings.local_steps)

    return Phase(
        name="local steps",
        steps=settings.local_steps,
        broadcast=lambda server: server,
        start=start,
        step=step,
        finish=finish,
        server=server,
        # The reference of directions is 0.
        reference=lambda downlink: tuple(map(tree.zeros_like, downlink[:3])),
        beside=Beside(partial(_bound_weight, settings)) if normalised else Beside(),
    )


def _bound_weight(
    settings: SimFBO, weight: Float[Array, ""], downlink: Downlink
) -> Float[Array, ""]:
    """Return ‖a‖₁ of a device, limited to that of `local_steps` steps.

    It is a factor of the server's step, so one device could otherwise dominate.
    """
    xp = arrays.namespace(weight)
    steps = xp.arange(settings.local_steps, dtype=weight.dtype)
    # The margin allows for the rounding error of devices, which sum in another order.
    most = 1.000001 * xp.sum(xp.asarray(settings.discount, dtype=weight.dtype) ** steps)
    bounded = xp.clip(weight, 0.0, most)
    limited: Float[Array, ""] = xp.where(xp.isfinite(weight), bounded, weight)
    return limited
