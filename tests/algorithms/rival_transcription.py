"""The rival algorithms in plain NumPy, for the quadratic of `tests.quadratic`.

As in `tests.algorithms.transcription`, no code is shared with the package: derivatives
are written by hand, and devices and steps are Python loops. Only the samples come from
the package, by `draw(round, exchange, device, position)`. Position 0 is the start of a
device's work in an exchange, position k + 1 its local step k.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.algorithms import transcription
from tests.quadratic import RIDGE

Draw = Callable[[int, int, int, int], Any]


class Federation(NamedTuple):
    """The initial point, the weights of the devices and the number of rounds."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    rounds: int

    @property
    def devices(self) -> range:
        return range(len(self.weights))

    def mean(self, vectors: Sequence[Any]) -> Any:
        total = sum(w * v for w, v in zip(self.weights, vectors, strict=True))
        return total / sum(self.weights)


class Point(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    adjoint: np.ndarray


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Rates(NamedTuple):
    upper: float
    lower: float
    adjoint: float


class Trace(NamedTuple):
    """The points of all devices after each round.

    `projected` has, for every projection of z, whether it shortened z.
    """

    points: list[list[Point]]
    projected: list[bool]


def upper_gradients(x, y, batch):
    return batch.shift.mean(0) + RIDGE * x, y - batch.target.mean(0)


def lower_gradient(x, y, batch):
    return batch.matrix.mean(0) @ y - batch.coupling.mean(0) @ x - batch.offset.mean(0)


def hessian_product(batch, z):
    return batch.matrix.mean(0) @ z


def cross_product(batch, z):
    return -batch.coupling.mean(0).T @ z  # ∇²xy g z


def directions(point: Point, samples: Any) -> Point:
    """Return ∇x f − J z, ∇y g and H z − ∇y f."""
    x, y, z = point
    gradient_x, gradient_y = upper_gradients(x, y, samples.upper)
    (curvature,) = samples.curvature
    return Point(
        gradient_x - cross_product(samples.cross, z),
        lower_gradient(x, y, samples.lower),
        hessian_product(curvature, z) - gradient_y,
    )


def project(z: np.ndarray, radius: float, projected: list[bool]) -> np.ndarray:
    norm = math.sqrt(float(z @ z))
    projected.append(norm > radius)
    return z * (radius / norm) if norm > radius else z


def averaged(
    federation: Federation, points: list[Point], private_lower: bool
) -> list[Point]:
    """Return the mean for every device, or only that of x if y and z are private."""
    x, y, z = (federation.mean(field) for field in zip(*points, strict=True))
    if private_lower:
        return [Point(x, point.y, point.adjoint) for point in points]
    return [Point(x, y, z) for _ in points]


def fedbio(
    federation: Federation,
    draw: Draw,
    rates: Rates,
    radius: float,
    local_steps: int,
    private_lower: bool,
) -> Trace:
    eta, gamma, tau = rates
    trace = Trace([], [])
    start = Point(federation.x, federation.y, np.zeros_like(federation.y))
    points = [start for _ in federation.devices]
    for r in range(federation.rounds):
        for i in federation.devices:
            for k in range(local_steps):
                x, y, z = points[i]
                d_x, d_y, d_z = directions(points[i], draw(r, 0, i, k + 1))
                z_new = project(z - tau * d_z, radius, trace.projected)
                points[i] = Point(x - eta * d_x, y - gamma * d_y, z_new)
        points = averaged(federation, points, private_lower)
        trace.points.append(list(points))
    return trace


def fedbio_acc(
    federation: Federation,
    draw: Draw,
    draw_opening: Draw,
    a: float,
    rates: Rates,
    mixing: Rates,
    radius: float,
    local_steps: int,
    private_lower: bool,
) -> Trace:
    """Run FedBiOAcc with step lengths a · `rates` and c = `mixing`."""
    trace = Trace([], [])
    start = Point(federation.x, federation.y, np.zeros_like(federation.y))
    points = [start for _ in federation.devices]
    estimates = [
        directions(start, draw_opening(0, 0, i, 0)) for i in federation.devices
    ]
    for r in range(federation.rounds):
        for i in federation.devices:
            for k in range(local_steps):
                x, y, z = points[i]
                m_x, m_y, m_z = estimates[i]
                z_new = project(z - rates.adjoint * a * m_z, radius, trace.projected)
                new = Point(x - rates.upper * a * m_x, y - rates.lower * a * m_y, z_new)
                batches = draw(r, 0, i, k + 1)
                at_new, at_old = (
                    directions(new, batches),
                    directions(points[i], batches),
                )
                estimates[i] = Point(
                    at_new.x + (1 - mixing.upper * a**2) * (m_x - at_old.x),
                    at_new.y + (1 - mixing.lower * a**2) * (m_y - at_old.y),
                    at_new.adjoint
                    + (1 - mixing.adjoint * a**2) * (m_z - at_old.adjoint),
                )
                points[i] = new
        points = averaged(federation, points, private_lower)
        estimates = averaged(federation, estimates, private_lower)
        trace.points.append(list(points))
    return trace


def simfbo(
    federation: Federation,
    draw: Draw,
    rates: Rates,
    server_rate: float,
    discount: float,
    radius: float,
    steps: Sequence[int],
    normalised: bool,
) -> Trace:
    """Run SimFBO, or ShroFBO if `normalised`, with steps[i] local steps on device i."""
    trace = Trace([], [])
    server = Point(federation.x, federation.y, np.zeros_like(federation.y))
    for r in range(federation.rounds):
        uploads, norms = [], []
        for i in federation.devices:
            point, q = server, [np.zeros_like(variable) for variable in server]
            weights = [discount**k for k in range(steps[i])]
            for k, weight in enumerate(weights):
                d = directions(point, draw(r, 0, i, k + 1))
                for j in range(3):
                    q[j] = q[j] + weight * d[j]
                point = Point(*(point[j] - weight * rates[j] * d[j] for j in range(3)))
            uploads.append(q)
            norms.append(sum(weights))  # ‖a_i‖₁
        if normalised:
            factor = federation.mean(norms)
            uploads = [
                [factor * part / norm for part in q]
                for q, norm in zip(uploads, norms, strict=True)
            ]
        q_x, q_y, q_z = (federation.mean(part) for part in zip(*uploads, strict=True))
        server = Point(
            server.x - server_rate * rates.upper * q_x,
            server.y - server_rate * rates.lower * q_y,
            project(
                server.adjoint - server_rate * rates.adjoint * q_z,
                radius,
                trace.projected,
            ),
        )
        trace.points.append([server for _ in federation.devices])
    return trace


class NestedDraws(NamedTuple):
    """Draws of FedNest's exchanges: a batch of one level, or a batch of each level."""

    upper: Draw
    lower: Draw
    pair: Draw


class Nested(NamedTuple):
    """Settings of FedNest and LFedNest; theta is 1/ℓ and terms is N − 1."""

    upper_rate: float
    lower_rate: float
    theta: float
    terms: int
    lower_rounds: int
    lower_steps: int
    local_steps: int


def fednest(
    federation: Federation,
    draws: NestedDraws,
    settings: Nested,
    products: Sequence[int] | None,
) -> list[Pair]:
    """Run FedNest; `products` are the N′ of each round, or None to sum the series."""
    theta, terms = settings.theta, settings.terms
    devices, mean = federation.devices, federation.mean
    x, y = federation.x, federation.y
    trace = []
    for r in range(federation.rounds):
        for inner in range(settings.lower_rounds):
            query, moved = 2 * inner, 2 * inner + 1
            q = mean(
                [lower_gradient(x, y, draws.lower(r, query, i, 0)) for i in devices]
            )
            ends = []
            for i in devices:
                local = y
                for k in range(settings.lower_steps):
                    batch = draws.lower(r, moved, i, k + 1)
                    correction = q - lower_gradient(x, y, batch)
                    local = local - settings.lower_rate * (
                        lower_gradient(x, local, batch) + correction
                    )
                ends.append(local)
            y = mean(ends)
        exchange = 2 * settings.lower_rounds
        power = mean(
            [upper_gradients(x, y, draws.upper(r, exchange, i, 0))[1] for i in devices]
        )
        powers = [power]
        for _ in range(terms):
            exchange += 1
            batches = [draws.lower(r, exchange, i, 0) for i in devices]
            power = mean(
                [power - theta * hessian_product(batch, power) for batch in batches]
            )
            powers.append(power)
        inverse = (
            theta * sum(powers)
            if products is None
            else (terms + 1) * theta * powers[products[r]]
        )
        exchange += 1
        gradients = []
        for i in devices:
            upper, lower = draws.pair(r, exchange, i, 0)
            gradients.append(
                upper_gradients(x, y, upper)[0] - cross_product(lower, inverse)
            )
        h = mean(gradients)
        exchange += 1
        ends = []
        for i in devices:
            local = x
            for k in range(settings.local_steps):
                batch = draws.upper(r, exchange, i, k + 1)
                correction = h - upper_gradients(x, y, batch)[0]
                local = local - settings.upper_rate * (
                    upper_gradients(local, y, batch)[0] + correction
                )
            ends.append(local)
        x = mean(ends)
        trace.append(Pair(x, y))
    return trace


def lfednest(
    federation: Federation, draw_lower: Draw, draw_series: Draw, settings: Nested
) -> list[Pair]:
    x, y = federation.x, federation.y
    trace = []
    for r in range(federation.rounds):
        for exchange in range(settings.lower_rounds):
            ends = []
            for i in federation.devices:
                local = y
                for k in range(settings.lower_steps):
                    batch = draw_lower(r, exchange, i, k + 1)
                    local = local - settings.lower_rate * lower_gradient(
                        x, local, batch
                    )
                ends.append(local)
            y = federation.mean(ends)
        ends = []
        for i in federation.devices:
            local = x
            for k in range(settings.local_steps):
                samples = draw_series(r, settings.lower_rounds, i, k + 1)
                local = local - settings.upper_rate * transcription.hypergradient(
                    local, y, samples, settings.theta
                )
            ends.append(local)
        x = federation.mean(ends)
        trace.append(Pair(x, y))
    return trace
