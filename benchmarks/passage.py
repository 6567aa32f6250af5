"""Steps to a stationarity on the noisy quadratic, and tuning of the step size.

The paper's stationarity is the average over all steps so far, so the start of a run
counts until its end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks import noisy_quadratic
from benchmarks.noisy_quadratic import Noise
from fedbilevel import LocalBSGM, LocalBSGVRM, NeumannSeries, Run, sweep, with_plan
from fedbilevel.engines.costs import Costs
from fedbilevel.theory import LOCAL_BSGM_LAW, Plan, ScalingLaw

UPPER_RATE = 0.25
LOWER_RATE = 1.0
"""The theorems require ρ_1 below ρ_2: y must follow y*(x)."""
TERMS = 2
"""Q; the series' squared bias at x* is then 0.005."""


class Passages(NamedTuple):
    """The first step at which each run's average is at the threshold.

    Attributes:
        steps: T by setting and seed, infinite if a run did not reach the threshold.
        costs: total costs of a run after each round.
    """

    steps: Float[np.ndarray, "settings seeds"]
    costs: tuple[Costs, ...]


class Tuned(NamedTuple):
    """The best of several settings.

    Attributes:
        best: index of the setting.
        median: its median T over the tuning seeds.
        steps: its T with each of the other seeds.
        inside: True if it is neither the first nor the last setting.
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
        threshold: target of the average.
        at_start: the stationarity at t = 0.
        after_rounds: the stationarity after each round, used for the next p steps.
        local_steps: p.

    Returns:
        T, a multiple of p, or infinity if the average stays above the threshold.
    """
    before = np.roll(after_rounds, 1, axis=-1).astype(float)
    before[..., 0] = at_start
    rounds = np.arange(1, before.shape[-1] + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # in runs that diverge
        reached = np.cumsum(before, axis=-1) / rounds <= threshold
    first = local_steps * (1.0 + np.argmax(reached, axis=-1))
    return np.where(reached.any(axis=-1), first, np.inf)


def passages(
    plans: Sequence[Plan], *, noise: Noise, steps: int, seeds: Sequence[int]
) -> Passages:
    """Run each plan with every seed for at most `steps` steps.

    Args:
        plans: plans for one number of devices and accuracy that differ in numbers only.
        noise: the scatter of examples.
        steps: number of steps.
        seeds: seeds of the runs of each plan.
    """
    plan = plans[0]
    task = noisy_quadratic.task(plan.devices, noise)
    start = noisy_quadratic.start()
    inputs = task.problem, algorithm_of(plan), task.devices, start.x, start.y
    swept = sweep(
        Run(*inputs, rounds=-(-steps // plan.local_steps)),
        [algorithm_of(plan) for plan in plans],
        seeds=seeds,
        measure=noisy_quadratic.stationarity(),
    )
    first = first_steps(
        plan.accuracy,
        start.stationarity,
        np.asarray(swept.measurements),
        plan.local_steps,
    )
    return Passages(first, swept.costs[0])  # all devices participate with every seed


def tune(results: Passages, tuning_seeds: int) -> Tuned:
    """Choose a setting with the first seeds and report it with the others."""
    medians = np.median(results.steps[:, :tuning_seeds], axis=1)
    best = int(np.argmin(medians))
    return Tuned(
        best,
        float(medians[best]),
        results.steps[best, tuning_seeds:].tolist(),
        0 < best < len(medians) - 1,
    )
