"""Suggestion of an algorithm and its settings, measured on the data."""

from typing import NamedTuple

import jax
import numpy as np

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.engines.checks import check_rounds
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.query_session import QuerySession
from fedbilevel.engines.run import Run
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.metrics.probes import (
    ROUNDING,
    Probe,
    Probes,
    ProbeState,
    largest,
    quantile,
)

HIGH = 0.9
"""The quantile of the curvatures of batches from which rates are derived."""
TOTAL = 256
"""The most examples of a step, over all devices."""
LARGEST_BATCH = 64
TOO_CURVED = 8.0
"""The growth of the curvature that indicates a step that was too long."""
CLOSE = 0.1
"""The largest remainder of a series, relative to ∇y f, for an accurate inverse."""


class Suggestion(NamedTuple):
    """Settings, and the measurements from which they are derived.

    Attributes:
        algorithm: suggested algorithm; it measures the curvature in every exchange.
        curvature: 90 % quantile L of the curvatures of batches, near y*(x).
        sharpest: largest curvature of a device, in the mean of its batches.
        smallest: curvature of the mean lower loss along a vector, an upper bound of its
            smallest curvature; from a few batches of each device.
        lower_rate: rate of y for an algorithm with fixed rates; stable on all devices.
        adjoint_rate: rate of z for an algorithm with fixed rates.
        series: a Neumann series that approximates the inverse; None if 64 terms do not
            suffice.
        remainders: remainders of series of 1, 2, 4, … terms, relative to ∇y f, at most
            1e30.
        reasons: a sentence for each setting.
        costs: costs of the measurements.
    """

    algorithm: AutoFedBiO
    curvature: float
    sharpest: float
    smallest: float
    lower_rate: float
    adjoint_rate: float
    series: NeumannSeries | None
    remainders: tuple[float, ...]
    reasons: dict[str, str]
    costs: Costs

    def __str__(self) -> str:
        return "\n".join(f"{name}: {reason}" for name, reason in self.reasons.items())


def suggest(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    weights: Weighting = None,
    engine: Engine = Simulation(),
) -> Suggestion:
    """Measure curvatures on the devices, and return settings with a reason for each.

    With 100 rounds or more, it takes at most 5 % of the exchanges and of the samples of
    a run of the returned `algorithm`, whose batch size it uses. For a run with smaller
    batches, pass their size: a suggestion for batches of 64 draws four times as many
    samples as one for batches of 16.

    Args:
        problem: the two losses.
        devices: data of all devices.
        x: initial upper variable of the run.
        y: initial lower variable of the run.
        rounds: number of rounds of the run.
        batch_size: batch size of the run; by default 256 examples over all devices, but
            at most 64 for each.
        seed: seed of the batches.
        weights: weights of the devices, as for `run`.
        engine: engine that executes the devices' work.

    Raises:
        ArithmeticError: if a measurement of a device is not finite.
        ValueError: if the curvature of the lower loss is zero.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel import suggest
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: 2 * jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> result = suggest(problem, devices, 3.0, 0.0, rounds=200)
        >>> 0.22 < result.lower_rate <= 0.25, result.algorithm.batch_size
        (True, 64)
    """
    check_rounds(rounds)
    size = batch_size
    if size is None:
        size = max(1, min(LARGEST_BATCH, TOTAL // devices.device_count))
    doublings = max(1, min(6, int(np.log2(max(2, rounds / 3)))))
    probes = Probes(batch_size=size, doublings=doublings)
    session = QuerySession(
        Run(
            problem,
            probes,
            devices,
            x,
            y,
            rounds=1,
            seed=seed,
            weights=weights,
            engine=engine,
        )
    )
    state: ProbeState = session.server
    state, near = _descend(session, state, rounds)
    state = session.ask(Probe.SERIES, state._replace(rate=1.0 / near.highest))
    state = session.ask(Probe.SMALLEST, state)
    batches = (
        f"{size} for each device, as passed."
        if batch_size is not None
        else f"{size} for each device: at most {TOTAL} examples over all devices in a "
        f"step, and at most {LARGEST_BATCH} for each."
    )
    return _conclude(
        AutoFedBiO(rounds, batch_size=size), batches, near, state, session.costs
    )


def batch_curvature(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    batch_size: int,
    rounds: int,
    seed: int = 0,
    weights: Weighting = None,
    engine: Engine = Simulation(),
) -> float:
    """Return the 90 % quantile of the curvatures of batches, near y*(x).

    Args:
        problem: the two losses.
        devices: data of all devices.
        x: initial upper variable of the run.
        y: initial lower variable of the run.
        batch_size: number of examples of a batch; small batches have larger curvature.
        rounds: number of rounds of the run; the measurement takes a twentieth of its
            exchanges.
        seed: seed of the batches.
        weights: weights of the devices, as for `run`.
        engine: engine that executes the devices' work.

    Raises:
        ArithmeticError: if a measurement of a device is not finite.
        ValueError: if the curvature of the lower loss is zero.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: 2 * jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> curvature = batch_curvature(
        ...     problem, devices, 3.0, 0.0, batch_size=1, rounds=100
        ... )
        >>> 4.0 <= curvature < 4.0 * 2**0.125
        True
    """
    probes = Probes(batch_size=batch_size)
    session = QuerySession(
        Run(
            problem,
            probes,
            devices,
            x,
            y,
            rounds=1,
            seed=seed,
            weights=weights,
            engine=engine,
        )
    )
    _, near = _descend(session, session.server, rounds)
    return near.usual


class _Level(NamedTuple):
    """Curvatures at a point: a high quantile of batches, and the largest device's."""

    usual: float
    sharpest: float

    @property
    def highest(self) -> float:
        """The curvature whose inverse is a rate that is stable on every device."""
        return max(self.usual, self.sharpest)


def _descend(
    session: QuerySession, state: ProbeState, rounds: int
) -> tuple[ProbeState, _Level]:
    """Return a point closer to y*(x), where curvatures may be much larger."""
    level = _curvature(session, state)
    rate, steps = 0.5 / level.highest, max(1, rounds // 100)
    # Each attempt takes two exchanges; the series and its remainder take two more.
    while steps and session.costs.exchanges + 4 <= max(5, rounds // 20):
        try:
            candidate = session.ask(Probe.DESCENT, state._replace(rate=rate))
            next_level = _curvature(session, candidate)
        except ArithmeticError:
            next_level = None
        # A much larger curvature shows that y jumped over the minimum.
        if next_level is None or next_level.usual > TOO_CURVED * level.usual:
            rate /= TOO_CURVED
            continue
        state, level, steps = candidate, next_level, steps - 1
        rate = min(rate * 2.0, 0.5 / level.highest)
    return state, level


def _curvature(session: QuerySession, state: ProbeState) -> _Level:
    answer = jax.device_get(session.ask(Probe.CURVATURE, state))
    usual = quantile(np.asarray(answer.counts, float), HIGH)
    if usual < 1e-30:
        raise ValueError(
            "The curvature of lower_loss in y is 0 at the initial x and y, so no rate "
            "can be derived from it. Add a penalty on y, such as 0.01 * jnp.sum(y**2)."
        )
    return _Level(usual, largest(np.asarray(answer.device_counts, float)))


def _conclude(
    algorithm: AutoFedBiO,
    batches: str,
    level: _Level,
    state: ProbeState,
    costs: Costs,
) -> Suggestion:
    rate = 1.0 / level.highest
    smallest = float(state.smallest)
    remainders = tuple(float(value) for value in np.asarray(state.remainders))
    lengths = [2**k for k in range(len(remainders))]
    close = [q for q, left in zip(lengths, remainders, strict=True) if left <= CLOSE]
    downward = smallest < -ROUNDING * level.highest or float(state.downward) > 0
    series = NeumannSeries(close[0], rate) if close and not downward else None
    reasons = {
        "algorithm": "AutoFedBiO, which measures the curvature in every exchange and "
        "needs no rates.",
        "batch_size": batches,
        "local_steps": f"{algorithm.local_steps}: exchanges cost more than steps. Use "
        "1 if devices are very heterogeneous.",
        "server_optimiser": "Adam, which moves each coordinate of x by about "
        f"{algorithm.upper_rate:g} in a round, whatever the scale of the "
        "hypergradient.",
        "lower_rate": _rate_reason(level),
        "adjoint_rate": f"{rate:.3g}: the updates of z and y use the same Hessians.",
        "series": f"{series.terms} terms of scale {rate:.3g} leave a remainder below "
        f"{CLOSE:.0%} of ∇y f."
        if series
        else _series_reason(level, state, lengths[-1], remainders[-1]),
    }
    return Suggestion(
        algorithm,
        level.usual,
        level.sharpest,
        smallest,
        rate,
        rate,
        series,
        remainders,
        reasons,
        costs,
    )


def _rate_reason(level: _Level) -> str:
    rate = 1.0 / level.highest
    usual = f"{level.usual:.3g}, the 90 % quantile of batches near y*(x)"
    if level.sharpest <= level.usual:
        return f"{rate:.3g}, the inverse of the curvature {usual}."
    return (
        f"{rate:.3g}, the inverse of the largest curvature of a device, "
        f"{level.sharpest:.3g}. This is {level.sharpest / level.usual:.3g} times "
        f"{usual}. Twice this rate or more diverges on that device; without the device "
        f"the rate would be {1.0 / level.usual:.3g}."
    )


def _series_reason(
    level: _Level, state: ProbeState, terms: int, remainder: float
) -> str:
    smallest = float(state.smallest)
    adjoint = "Use an algorithm with an adjoint."
    if smallest < -ROUNDING * level.highest:
        return (
            f"none: the lower loss has negative curvature, {smallest:.2g} in a "
            "direction, so y*(x) is not a minimum, and a series does not approximate "
            f"the inverse of H. Add a penalty on y, such as {-smallest:.2g} * "
            "jnp.sum(y**2)."
        )
    if float(state.downward) > 0:
        return (
            f"none: on {100 * float(state.downward):.2g} % of devices (by weight) the "
            "lower loss has negative curvature in a direction, in which a series "
            f"diverges. {adjoint[:-1]} and local_steps=1, or add a penalty on y."
        )
    if remainder > 1:
        return (
            f"none: a series grows to {remainder:.2g} times ∇y f after {terms} terms, "
            "because the curvature of some batches is more than twice the largest mean "
            f"curvature of a device. {adjoint}"
        )
    return (
        f"none: a series of {terms} terms leaves a remainder of {remainder:.0%} of "
        f"∇y f; the smallest curvature is at most {smallest:.2g}. {adjoint}"
    )
