"""Settings from the data: what to run, at which rates, and why."""

from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.probes import (
    ROUNDING,
    Probe,
    Probes,
    ProbeState,
    largest,
    quantile,
)
from fedbilevel.data.devices import Devices
from fedbilevel.engines.checks import check_rounds
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.query_session import QuerySession
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

HIGH = 0.9
"""The quantile of batches' curvatures that rates are made from."""
TOTAL = 256
"""Examples of a step, of all devices together."""
LARGEST_BATCH = 64
TOO_CURVED = 8.0
"""Times as curved as before: how a lower loss looks where steps were too long."""
CLOSE = 0.1
"""What a series may leave of ∇y f, for its result to be an inverse."""


class Suggestion(NamedTuple):
    """Settings, with the measurements that they come from.

    Attributes:
        algorithm: to be run; it measures the curvature again in every exchange.
        curvature: L, which nine tenths of batches do not exceed, near y*(x).
        sharpest: the curvature of the sharpest device, in the mean of its batches.
        smallest: the curvature of the mean of all lower losses along a vector, so its
            smallest curvature is not larger; from a few batches of each device.
        lower_rate: of y, for an algorithm with fixed rates; stable on all devices.
        adjoint_rate: of z, likewise.
        series: a Neumann series whose result is an inverse; None if there is none of
            at most 64 terms.
        remainders: what series of 1, 2, 4, … terms leave of ∇y f, of 1e30 at most.
        reasons: a sentence for each setting.
        costs: of the measurements.

    Example:
        >>> Suggestion.__name__
        'Suggestion'
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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> Suggestion:
    """Measure on the devices, and return settings with a reason for each.

    From 100 rounds on, it takes at most a twentieth of the exchanges and of the samples
    of a run of the `algorithm` that it returns, whose batches are as large as its own.
    For a run with smaller batches, give their size: a suggestion for batches of 64
    draws four times as many samples as one for batches of 16.

    Args:
        problem: the two losses.
        devices: the data.
        x: where the run begins.
        y: where the run begins.
        rounds: of the run.
        batch_size: of the run; by default as large as 256 examples of all devices
            allow, and 64 at most.
        seed: of the batches.
        weights: of the devices, as for `run`.
        engine: where the devices' work is done.

    Raises:
        ArithmeticError: if a device's measurement is not finite.
        ValueError: if the lower loss is not curved at all.

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
        >>> found = suggest(problem, devices, 3.0, 0.0, rounds=200)
        >>> 0.22 < found.lower_rate <= 0.25, found.algorithm.batch_size
        (True, 64)
    """
    check_rounds(rounds)
    size = batch_size
    if size is None:
        size = max(1, min(LARGEST_BATCH, TOTAL // devices.device_count))
    doublings = max(1, min(6, int(np.log2(max(2, rounds / 3)))))
    ask = Probes(batch_size=size, doublings=doublings)
    inquiry = QuerySession(
        problem, ask, devices, x, y, seed=seed, weights=weights, engine=engine
    )
    state: ProbeState = inquiry.server
    state, near = _descended(inquiry, state, rounds)
    state = inquiry.ask(Probe.SERIES, state._replace(rate=1.0 / near.highest))
    state = inquiry.ask(Probe.SMALLEST, state)
    batches = (
        f"{size} for each device, as asked for."
        if batch_size is not None
        else f"{size} for each device, at most {TOTAL} examples of all devices in a "
        f"step and {LARGEST_BATCH} of each."
    )
    return _concluded(
        AutoFedBiO(rounds, batch_size=size), batches, near, state, inquiry.costs
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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> float:
    """Return the curvature that nine tenths of batches do not exceed, near y*(x).

    Args:
        problem: the two losses.
        devices: the data.
        x: where the run begins.
        y: where the run begins.
        batch_size: examples of a batch; small batches are more curved.
        rounds: of the run that it is for, of whose exchanges it makes a twentieth.
        seed: of the batches.
        weights: of the devices, as for `run`.
        engine: where the devices' work is done.

    Raises:
        ArithmeticError: if a device's measurement is not finite.
        ValueError: if the lower loss is not curved at all.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: 2 * jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> found = batch_curvature(
        ...     problem, devices, 3.0, 0.0, batch_size=1, rounds=100
        ... )
        >>> 4.0 <= found < 4.0 * 2**0.125
        True
    """
    inquiry = QuerySession(
        problem,
        Probes(batch_size=batch_size),
        devices,
        x,
        y,
        seed=seed,
        weights=weights,
        engine=engine,
    )
    _, near = _descended(inquiry, inquiry.server, rounds)
    return near.usual


class _Level(NamedTuple):
    """Curvatures at a point: a high quantile of batches, and the sharpest device's."""

    usual: float
    sharpest: float

    @property
    def highest(self) -> float:
        """The curvature whose inverse is a rate that is stable on every device."""
        return max(self.usual, self.sharpest)


def _descended(
    inquiry: QuerySession, state: ProbeState, rounds: int
) -> tuple[ProbeState, _Level]:
    """Return a point closer to y*(x), where batches may be far more curved."""
    level = _curvature(inquiry, state)
    rate, steps = 0.5 / level.highest, max(1, rounds // 100)
    # Each attempt is two exchanges; the series and what it leaves are two more.
    while steps and inquiry.costs.exchanges + 4 <= max(5, rounds // 20):
        try:
            moved = inquiry.ask(Probe.DESCENT, state._replace(rate=rate))
            there = _curvature(inquiry, moved)
        except ArithmeticError:
            there = None
        # Otherwise y has jumped rather than descended.
        if there is None or there.usual > TOO_CURVED * level.usual:
            rate /= TOO_CURVED
            continue
        state, level, steps = moved, there, steps - 1
        rate = min(rate * 2.0, 0.5 / level.highest)
    return state, level


def _curvature(inquiry: QuerySession, state: ProbeState) -> _Level:
    answer = jax.device_get(inquiry.ask(Probe.CURVATURE, state))
    found = quantile(np.asarray(answer.counts, float), HIGH)
    if found < 1e-30:
        raise ValueError(
            "the lower loss is not curved in y where it begins, so no rate follows "
            "from its curvature; add a penalty on y, such as 0.01 * jnp.sum(y**2)."
        )
    return _Level(found, largest(np.asarray(answer.device_counts, float)))


def _concluded(
    algorithm: AutoFedBiO,
    batches: str,
    level: _Level,
    state: ProbeState,
    costs: Costs,
) -> Suggestion:
    rate = 1.0 / level.highest
    smallest = float(state.smallest)
    remainders = tuple(float(one) for one in np.asarray(state.remainders))
    lengths = [2**k for k in range(len(remainders))]
    close = [q for q, left in zip(lengths, remainders, strict=True) if left <= CLOSE]
    downward = smallest < -ROUNDING * level.highest or float(state.downward) > 0
    series = NeumannSeries(close[0], rate) if close and not downward else None
    reasons = {
        "algorithm": "AutoFedBiO, which measures the curvature in every exchange and "
        "needs no rates.",
        "batch_size": batches,
        "local_steps": f"{algorithm.local_steps}: exchanges are dearer than steps; 1 "
        "if devices differ much.",
        "server_optimiser": f"Adam, about {algorithm.upper_rate:g} a round for each "
        "coordinate of x: it needs no scale of the hypergradient.",
        "lower_rate": _rate_reason(level),
        "adjoint_rate": f"{rate:.3g}: z is moved by the same Hessians as y.",
        "series": f"{series.terms} terms of scale {rate:.3g} leave less than "
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
    usual = f"{level.usual:.3g} that nine tenths of batches do not exceed near y*(x)"
    if level.sharpest <= level.usual:
        return f"{rate:.3g}, one over the curvature {usual}."
    return (
        f"{rate:.3g}, one over the curvature {level.sharpest:.3g} of the sharpest "
        f"device, which is {level.sharpest / level.usual:.3g} times the {usual}. "
        "Steps that are twice as long or more diverge on that device; without it the "
        f"rate would be {1.0 / level.usual:.3g}."
    )


def _series_reason(
    level: _Level, state: ProbeState, terms: int, remainder: float
) -> str:
    smallest = float(state.smallest)
    adjoint = "Use an algorithm with an adjoint."
    if smallest < -ROUNDING * level.highest:
        return (
            f"none: the lower loss has negative curvature, {smallest:.2g} in a "
            "direction, so y*(x) is not its minimum and H has no inverse that a series "
            f"approximates. Add a penalty on y, such as {-smallest:.2g} * "
            "jnp.sum(y**2)."
        )
    if float(state.downward) > 0:
        return (
            f"none: on {100 * float(state.downward):.2g} % of devices, by weight, the "
            "lower loss has negative curvature in a direction, where a series grows. "
            f"{adjoint[:-1]} and local_steps=1, or add a penalty on y."
        )
    if remainder > 1:
        return (
            f"none: a series grows to {remainder:.2g} times ∇y f after {terms} terms, "
            "since some batches are more than twice as curved as those of the sharpest "
            f"device in the mean. {adjoint}"
        )
    return (
        f"none: a series leaves {remainder:.0%} of ∇y f after {terms} terms; the "
        f"smallest curvature is at most {smallest:.2g}. {adjoint}"
    )
