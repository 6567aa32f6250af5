"""Phases of LocalBSGM and LocalBSGVRM: four variables, averaged every p steps."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, Info, Phase, Private, Upload
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.hypergradients import Hypergradient, Samples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class MomentumState(NamedTuple):
    """(x_t, y_t, u_t, v_t) and t: the server's state, and a device's between steps.

    Attributes:
        x: upper variable.
        y: lower variable.
        upper_direction: u, the estimate of the hypergradient.
        lower_direction: v, the estimate of the lower gradient.
        step: t, the number of steps so far.
        origin: the x of the estimates u and v, if a server optimiser moves x later.
    """

    x: Upper
    y: Lower
    upper_direction: Upper
    lower_direction: Lower
    step: schedules.Step
    origin: Upper | None = None


class MomentumUpdate(NamedTuple):
    """The update that a device uploads after its p steps."""

    x: Upper
    y: Lower
    upper_direction: Upper
    lower_direction: Lower


class Point(NamedTuple):
    """The downlink of the first round, before any estimate exists."""

    x: Upper
    y: Lower
    step: schedules.Step


Estimate = Callable[[Upper, Lower, Samples], tuple[Upper, Lower]]
"""The stochastic hypergradient and lower gradient at a point, from one sample."""


def initial_state(x: Upper, y: Lower) -> MomentumState:
    """Return the server's state before the first round, with zero directions.

    Example:
        >>> import jax.numpy as jnp
        >>> initial_state(jnp.ones(2), jnp.ones(3)).upper_direction
        Array([0., 0.], dtype=float32)
    """
    return MomentumState(x, y, tree.scale(0.0, x), tree.scale(0.0, y), step=0)


def estimate(
    problem: BilevelProblem,
    hypergradient: Hypergradient,
    x: Upper,
    y: Lower,
    samples: Samples,
) -> tuple[Upper, Lower]:
    """Return ∇̂Φ(x, y; ξ̂) and ∇y g(x, y; ζ).

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, NeumannSeries, Samples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> one = jnp.ones(1)
        >>> u, v = estimate(
        ...     problem,
        ...     NeumannSeries(terms=1, scale=0.5),
        ...     jnp.array(3.0),
        ...     jnp.array(3.0),
        ...     Samples(one, one, one, (one,)),
        ... )
        >>> float(u), float(v)
        (4.0, 0.0)
    """
    return (
        hypergradient(problem, x, y, samples),
        problem.lower_gradient(x, y, samples.lower),
    )


def corrected(
    direction: PyTree, old: PyTree, forget: tree.Scalar, new: PyTree
) -> PyTree:
    """Return new + (1 − forget)(direction − old), the variance-reduced estimate.

    `old` and `new` are one sample's estimates at the points before and after a step.

    Example:
        >>> import jax.numpy as jnp
        >>> float(corrected(jnp.array(3.0), jnp.array(1.0), 0.5, jnp.array(2.0)))
        3.0
    """
    return tree.add_scaled(new, 1 - forget, tree.subtract(direction, old))


def local_phase(
    local_steps: int,
    step: Callable[[MomentumState, DeviceData, RandomKey], MomentumState],
    upper_rate: tree.Scalar = 1.0,
) -> Phase:
    """Return an exchange: p local steps from the averaged state, then an average.

    Devices have no private state, so a device may miss rounds or restart.

    Args:
        local_steps: p.
        step: function that makes one local step.
        upper_rate: ρ_1; at 0 the server's x is unchanged to the last bit.

    Example:
        >>> local_phase(3, lambda state, data, key: state).steps
        3
    """

    def finish(
        state: MomentumState, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        return Upload(MomentumUpdate(*state[:4])), (), {}

    def server(server: MomentumState, mean: Upload, key: RandomKey) -> MomentumState:
        mean_x, y, u, v = mean.update
        x = tree.keep_fixed(upper_rate, server.x, mean_x)
        origin = None if server.origin is None else x
        return MomentumState(x, y, u, v, server.step + local_steps, origin)

    return Phase(
        name="local steps",
        steps=local_steps,
        broadcast=lambda server: server,
        start=lambda downlink, private, data, key: downlink,
        step=step,
        finish=finish,
        server=server,
        reference=lambda downlink: downlink[:4],
    )


def opening_phase(
    phase: Phase, first: Estimate, draw: Callable[[DeviceData, RandomKey], Samples]
) -> Phase:
    """Return the phase for t = 0, which starts with each device's first estimates.

    Example:
        >>> phase = local_phase(3, lambda state, data, key: state)
        >>> opening = opening_phase(
        ...     phase,
        ...     first=lambda x, y, samples: (samples, samples),
        ...     draw=lambda data, key: 7.0,
        ... )
        >>> opening.broadcast(MomentumState(1.0, 2.0, 0.0, 0.0, step=0))
        Point(x=1.0, y=2.0, step=0)
    """

    def start(
        downlink: Point, private: Private, data: DeviceData, key: RandomKey
    ) -> MomentumState:
        x, y, step = downlink
        return MomentumState(x, y, *first(x, y, draw(data, key)), step=step)

    def reference(downlink: Point) -> tuple[PyTree, ...]:
        # These are the first estimates, so their reference is 0.
        x, y, _ = downlink
        return x, y, tree.zeros_like(x), tree.zeros_like(y)

    return phase._replace(
        name="first local steps",
        broadcast=lambda server: Point(server.x, server.y, server.step),
        start=start,
        reference=reference,
    )
