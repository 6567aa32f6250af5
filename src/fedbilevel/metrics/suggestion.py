"""Settings from the data: what to run, at which rates, and why."""

from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.soundings import Sounding, Soundings, SoundingState, quantile
from fedbilevel.data.devices import Devices
from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.inquiry import Inquiry
from fedbilevel.engines.protocol import Engine
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
        smallest: a curvature that the smallest does not exceed.
        lower_rate: of y, for an algorithm with fixed rates.
        adjoint_rate: of z, likewise.
        series: a Neumann series whose result is an inverse; None if there is none of
            at most 64 terms.
        remainders: what series of 1, 2, 4, … terms leave of ∇y f.
        reasons: a sentence for each setting.
        costs: of the measurements.

    Example:
        >>> Suggestion.__name__
        'Suggestion'
    """

    algorithm: AutoFedBiO
    curvature: float
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
    seed: int = 0,
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> Suggestion:
    """Measure on the devices, and return settings with a reason for each.

    It asks for some exchanges and draws some batches: at most a twentieth of what the
    run that it is for will, from 100 rounds on.

    Args:
        problem: the two losses.
        devices: the data.
        x: where the run begins.
        y: where the run begins.
        rounds: of the run.
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
    size = max(1, min(LARGEST_BATCH, TOTAL // devices.device_count))
    doublings = max(1, min(6, int(np.log2(max(2, rounds / 3)))))
    ask = Soundings(batch_size=size, doublings=doublings)
    inquiry = Inquiry(
        problem, ask, devices, x, y, seed=seed, weights=weights, engine=engine
    )
    state: SoundingState = inquiry.server
    state, near = _descended(inquiry, state, rounds)
    state = inquiry.ask(Sounding.SERIES, state._replace(rate=1.0 / near))
    remainders = tuple(float(one) for one in np.asarray(state.remainders))
    return _concluded(
        rounds, size, near, remainders, float(state.smallest), inquiry.costs
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
    inquiry = Inquiry(
        problem,
        Soundings(batch_size=batch_size),
        devices,
        x,
        y,
        seed=seed,
        weights=weights,
        engine=engine,
    )
    _, near = _descended(inquiry, inquiry.server, rounds)
    return near


def _descended(
    inquiry: Inquiry, state: SoundingState, rounds: int
) -> tuple[SoundingState, float]:
    """Return a point closer to y*(x), where batches may be far more curved."""
    level = _curvature(inquiry, state)
    rate, steps = 0.5 / level, max(1, rounds // 100)
    # Each attempt is two exchanges, and the series is one more.
    while steps and inquiry.costs.exchanges + 3 <= max(4, rounds // 20):
        try:
            moved = inquiry.ask(Sounding.DESCENT, state._replace(rate=rate))
            there = _curvature(inquiry, moved)
        except ArithmeticError:
            there = float("inf")
        if there > TOO_CURVED * level:  # y has jumped rather than descended
            rate /= TOO_CURVED
            continue
        state, level, steps = moved, there, steps - 1
        rate = min(rate * 2.0, 0.5 / level)
    return state, level


def _curvature(inquiry: Inquiry, state: SoundingState) -> float:
    counts = jax.device_get(inquiry.ask(Sounding.CURVATURE, state).counts)
    found = quantile(np.asarray(counts, float), HIGH)
    if found < 1e-30:
        raise ValueError(
            "the lower loss is not curved in y where it begins, so no rate follows "
            "from its curvature; add a penalty on y, such as 0.01 * jnp.sum(y**2)."
        )
    return found


def _concluded(
    rounds: int,
    size: int,
    curvature: float,
    remainders: tuple[float, ...],
    smallest: float,
    costs: Costs,
) -> Suggestion:
    rate = 1.0 / curvature
    lengths = [2**k for k in range(len(remainders))]
    close = [q for q, left in zip(lengths, remainders, strict=True) if left <= CLOSE]
    series = NeumannSeries(close[0], rate) if close else None
    algorithm = AutoFedBiO(rounds, batch_size=size)
    last = f"{remainders[-1]:.0%} of ∇y f after {lengths[-1]} terms"
    reasons = {
        "algorithm": "AutoFedBiO, which measures the curvature in every exchange and "
        "needs no rates.",
        "batch_size": f"{size} for each device, at most {TOTAL} examples of all "
        "devices in a step and 64 of each.",
        "local_steps": f"{algorithm.local_steps}: exchanges are dearer than steps; 1 "
        "if devices differ much.",
        "server_optimiser": f"Adam, at most {algorithm.upper_rate:g} a round for each "
        "coordinate of x: it needs no scale of the hypergradient.",
        "lower_rate": f"{rate:.3g}, one over the curvature {curvature:.3g} that nine "
        "tenths of batches do not exceed near y*(x).",
        "adjoint_rate": f"{rate:.3g}: z is moved by the same Hessians as y.",
        "series": f"{series.terms} terms of scale {rate:.3g} leave less than "
        f"{CLOSE:.0%} of ∇y f."
        if series
        else f"none: a series leaves {last}; the smallest curvature is at most "
        f"{smallest:.2g}. Use an algorithm with an adjoint.",
    }
    return Suggestion(
        algorithm,
        curvature,
        smallest,
        rate,
        rate,
        series,
        remainders,
        reasons,
        costs,
    )
