"""The paper's pseudo-code in plain NumPy, for the quadratic of `tests.quadratic`.

It shares no code with the package: derivatives are written by hand, devices and steps
are Python loops. Only the samples come from the package.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests import quadratic


class State(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    v: np.ndarray


class Settings(NamedTuple):
    alpha: float
    beta: float
    rho1: float
    rho2: float
    theta: float
    p: int
    eta: Callable[[int], float]


class Trace(NamedTuple):
    averages: list[State]
    consensus_errors: list[float]


def hypergradient(x, y, samples, theta):
    """Return equation (3.4) from hand-written derivatives."""
    upper, cross, curvature = samples.upper, samples.cross, samples.curvature
    gradient_x = upper.shift.mean(0) + quadratic.RIDGE * x
    gradient_y = y - upper.target.mean(0)
    terms = len(curvature)
    matrices = [batch.matrix.mean(0) for batch in curvature]
    series = np.zeros((y.size, y.size))
    for q in range(-1, terms):
        product = np.eye(y.size)
        for j in range(terms - q, terms + 1):
            product = product @ (np.eye(y.size) - theta * matrices[j - 1])
        series += theta * product
    mixed = -cross.coupling.mean(0).T  # ∇²xy g
    return gradient_x - mixed @ series @ gradient_y


def lower_gradient(x, y, samples):
    lower = samples.lower
    return lower.matrix.mean(0) @ y - lower.coupling.mean(0) @ x - lower.offset.mean(0)


def run(
    algorithm: int,
    settings: Settings,
    x: np.ndarray,
    y: np.ndarray,
    devices: int,
    rounds: int,
    draw: Callable[[int, int, int], object],
) -> Trace:
    """Run Algorithm 1 or 2; `draw(round, device, i)` returns ξ̂ and ζ of the i-th draw.

    Draw 0 is that of the opening, draw s + 1 that of local step s.
    """
    alpha, beta, rho1, rho2, theta, p, eta = settings
    trace = Trace([], [])
    states: Sequence[State] = []
    for k in range(devices):
        samples = draw(0, k, 0)
        u = hypergradient(x, y, samples, theta)
        states = [*states, State(x, y, u, lower_gradient(x, y, samples))]
    for t in range(rounds * p):
        next_states = []
        for k, (x_t, y_t, u_t, v_t) in enumerate(states):
            x_new = x_t - rho1 * eta(t) * u_t
            y_new = y_t - rho2 * eta(t) * v_t
            samples = draw(t // p, k, t % p + 1)
            h_new = hypergradient(x_new, y_new, samples, theta)
            g_new = lower_gradient(x_new, y_new, samples)
            if algorithm == 1:
                a, b = alpha * eta(t), beta * eta(t)
                u_new = (1 - a) * u_t + a * h_new
                v_new = (1 - b) * v_t + b * g_new
            else:
                a, b = alpha * eta(t) ** 2, beta * eta(t) ** 2
                h_old = hypergradient(x_t, y_t, samples, theta)
                g_old = lower_gradient(x_t, y_t, samples)
                u_new = (1 - a) * (u_t - h_old) + h_new
                v_new = (1 - b) * (v_t - g_old) + g_new
            next_states.append(State(x_new, y_new, u_new, v_new))
        states = next_states
        if (t + 1) % p == 0:
            average = State(
                *(np.mean(field, axis=0) for field in zip(*states, strict=True))
            )
            trace.averages.append(average)
            trace.consensus_errors.append(
                float(
                    np.mean(
                        [
                            np.sum((s.x - average.x) ** 2)
                            + np.sum((s.y - average.y) ** 2)
                            for s in states
                        ]
                    )
                )
            )
            states = [average] * devices
    return trace
