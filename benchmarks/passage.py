"""When runs on the noisy quadratic first reach a stationarity, and at which step size.

The paper measures stationarity by its average over all steps so far, so the start of a
run counts to its end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks import noisy_quadratic
from benchmarks.noisy_quadratic import Noise
from fedbilevel import LocalBSGM, LocalBSGVRM, NeumannSeries, sweep, with_plan
from fedbilevel.engines.costs import Costs
from fedbilevel.theory import LOCAL_BSGM_LAW, Plan, ScalingLaw

UPPER_RATE = 0.25
LOWER_RATE = 1.0
"""The theorems want ρ_1 below ρ_2: y must follow y*(x)."""
TERMS = 2
"""Q; the series' squared bias at x* is then 0.005."""


class Passages(NamedTuple):
    """The first step at which each run's average is at the threshold.

    Attributes:
        steps: T, by setting and seed, infinite where a run did not get there.
        costs: all that a run has spent after each round.
    """

    steps: Float[np.ndarray, "settings seeds"]
    costs: tuple[Costs, ...]


class Tuned(NamedTuple):
    """The best of several settings.

    Attributes:
        best: its place among the settings.
        median: its T, the median over the seeds it was chosen with.
        steps: its T with each of the other seeds.
        inside: whether it is neither the first nor the last setting.
    """

    best: int
    median: float
    steps: list[float]
    inside: bool


def algorithm_of(plan: Plan) -> LocalBSGM | LocalBSGVRM:
    """Return the algorithm with a plan's settings."""
    make = LocalBSGM if plan.law == LOCAL_BSGM_LAW else LocalBSGVRM
    series = NeumannSeries(plan.terms, noisy_quadratic.SERIES_SCALE)
    return with_plan(make(plan.learning_rate, series, UPPER_RATE, LOWER_RATE), plan)


def admissible(law: ScalingLaw, mixing: float, rates: Sequence[float]) -> list[float]:
    """Return the rates at which a fresh sample has a weight of at most 1."""
    return [rate for rate in rates if mixing * rate**law.mixing_power <= 1]


def first_steps(
    threshold: float,
    at_start: float,
    after_rounds: Float[np.ndarray, "*runs rounds"],
    local_steps: int,
) -> Float[np.ndarray, "*runs"]:
    """Return the first T at which 1/T Σ_{t<T} of the stationarity is at the threshold.

    Args:
        threshold: what the average is to fall to.
        at_start: the stationarity at t = 0.
        after_rounds: the stationarity after each round, which stands for the p steps
            that follow.
        local_steps: p.

    Returns:
        T, a multiple of p, or infinity where the average stays above the threshold.
    """
    before = np.roll(after_rounds, 1, axis=-1).astype(float)
    before[..., 0] = at_start
    rounds = np.arange(1, before.shape[-1] + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # of runs that diverge
        there = np.cumsum(before, axis=-1) / rounds <= threshold
    first = local_steps * (1.0 + np.argmax(there, axis=-1))
    return np.where(there.any(axis=-1), first, np.inf)


def passages(
    plans: Sequence[Plan], *, noise: Noise, steps: int, seeds: Sequence[int]
) -> Passages:
    """Run plans for at most so many steps, each with every seed.

    Args:
        plans: for one number of devices and accuracy, different in numbers only.
        noise: the scatter of examples.
        steps: how long to run.
        seeds: one run a seed and plan.
    """
    plan = plans[0]
    task = noisy_quadratic.task(plan.devices, noise)
    start = noisy_quadratic.start()
    done = sweep(
        task.problem,
        [algorithm_of(one) for one in plans],
        task.devices,
        start.x,
        start.y,
        rounds=-(-steps // plan.local_steps),
        seeds=seeds,
        measure=noisy_quadratic.stationarity(),
    )
    first = first_steps(
        plan.accuracy,
        start.stationarity,
        np.asarray(done.measurements),
        plan.local_steps,
    )
    return Passages(first, done.costs[0])  # everyone takes part, whatever the seed


def tune(found: Passages, tuning_seeds: int) -> Tuned:
    """Choose a setting with the first seeds and report it with the others."""
    medians = np.median(found.steps[:, :tuning_seeds], axis=1)
    best = int(np.argmin(medians))
    return Tuned(
        best,
        float(medians[best]),
        found.steps[best, tuning_seeds:].tolist(),
        0 < best < len(medians) - 1,
    )
