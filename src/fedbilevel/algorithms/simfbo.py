"""SimFBO: one exchange a round, the server stepping along accumulated directions."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.protocol import (
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    Count,
    Fraction,
    LowerRate,
    Rate,
    ServerRate,
    UpperRate,
    register,
)


class SimFBOState(NamedTuple):
    """The server's (x, y, z) and the most steps that a device may have made.

    Example:
        >>> SimFBOState(1.0, 2.0, 0.0, step=0).adjoint
        0.0
    """

    x: Upper
    y: Lower
    adjoint: Lower
    step: schedules.Step


class _Work(NamedTuple):
    point: AdjointPoint
    accumulated: AdjointPoint  # q = Σ_k a^k · direction
    weight: Float[Array, "*devices"]  # ‖a‖₁ so far
    done: Float[Array, "*devices"]  # k
    wanted: Float[Array, "*devices"]  # τ_i
    step: schedules.Step


@register
@dataclass(frozen=True)
class SimFBO:
    """Local steps on x, y and z; the server moves by what devices accumulated.

    Device i makes τ_i local steps along the directions of `FedBiO`, weighs step k by
    a_i^k, and uploads q_i = Σ_k a_i^k · direction; the server moves each variable by
    −γ Σ_i p_i q_i and projects z. With one local step an exchange the server's
    direction is the mean of `FedBiO`'s, so it rests where ∇Φ = 0, on heterogeneous
    devices too.

    Where devices make unequal numbers of steps, a device that makes more counts for
    more: the server then minimises Σ_i p_i ‖a_i‖₁ f_i with Σ_i p_i ‖a_i‖₁ g_i below it,
    another problem. `ShroFBO` divides that weight out. Directions enter the server's
    step linearly, so a uniform sample of devices of equal weight gives it without bias.

    Attributes:
        learning_rate: multiplies all three rates; a number or a schedule of the global
            step, constant within a round.
        upper_rate: of local steps on x.
        lower_rate: of local steps on y.
        adjoint_rate: of local steps on z.
        server_rate: γ divided by the local rate; 1 moves the server to the mean device.
        discount: a_i^k = discount^k; 1 weighs all steps alike.
        adjoint_radius: r, of the ball that the server keeps z in.
        local_steps: the most local steps that a device makes.
        batch_size: examples in each of the four batches of a step.
        examples_per_step: if given, a device with n lower examples makes only
            ⌈n / examples_per_step⌉ local steps, if those are fewer. Samples are counted
            as if all devices made the most.

    References:
        Yang, Xiao and Ji, SimFBO: Towards Simple, Flexible and Communication-efficient
        Federated Bilevel Learning, arXiv 2305.19442.

    Example:
        >>> from fedbilevel import SimFBO
        >>> SimFBO(learning_rate=0.1, server_rate=2.0, local_steps=5).discount
        1.0
    """

    learning_rate: schedules.LearningRate
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    adjoint_rate: LowerRate = 1.0
    server_rate: ServerRate = 1.0
    discount: Fraction = 1.0
    adjoint_radius: Rate | None = None
    local_steps: Count = 1
    batch_size: Count = 1
    examples_per_step: Count | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[SimFBOState, Private]:
        """Return (x, y, 0); devices keep nothing."""
        return SimFBOState(*initial_point(x, y), step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return nothing: the first round is like any other."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the local steps and the server's step."""
        return (accumulation_phase(self, problem, normalised=False),)


def accumulation_phase(
    settings: SimFBO, problem: BilevelProblem, normalised: bool
) -> Phase:
    """Return the exchange of `SimFBO`, or of `ShroFBO` where it is normalised.

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
        nothing = AdjointPoint(*(tree.scale(0.0, variable) for variable in point))
        zero = jnp.zeros(())
        wanted = zero + settings.local_steps
        if settings.examples_per_step is not None:
            size = jnp.asarray(data.lower.size, wanted.dtype)
            wanted = jnp.minimum(wanted, jnp.ceil(size / settings.examples_per_step))
        return _Work(point, nothing, zero, zero, wanted, downlink.step)

    def step(work: _Work, data: DeviceData, key: RandomKey) -> _Work:
        point, accumulated, total, done, wanted, t = work
        weight = jnp.where(done < wanted, settings.discount**done, 0.0)  # a_i^k
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
            done + 1,
            wanted,
            t,
        )

    def finish(
        work: _Work, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        info = {"local_steps": work.wanted}
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
        receive=partial(_bounded, settings) if normalised else None,
        # Directions begin at 0. The weight beside them is bounded by itself.
        reference=lambda downlink: tuple(map(tree.zeros_like, downlink[:3])),
    )


def _bounded(settings: SimFBO, upload: Upload, downlink: Downlink) -> Upload:
    """Return an upload whose ‖a‖₁ is that of the most steps, if it claims more.

    The server's step is multiplied by it, so that one device could decide all.
    """
    weight = upload.beside
    steps = jnp.arange(settings.local_steps, dtype=weight.dtype)
    # Not below what honest devices add up, in another order.
    most = 1.000001 * jnp.sum(jnp.asarray(settings.discount, weight.dtype) ** steps)
    kept = jnp.clip(weight, 0.0, most)
    return upload._replace(beside=jnp.where(jnp.isfinite(weight), kept, weight))
