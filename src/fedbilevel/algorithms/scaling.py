"""Rescale an algorithm's settings to another number of devices or to a plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp

from fedbilevel.algorithms.optional import Scaled
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.schedules import CubeRootDecay, Schedule, Step, rate_at
from fedbilevel.mathematics.settings import is_number, register
from fedbilevel.theory.plans import Plan
from fedbilevel.theory.scaling import (
    ScalingLaw,
    scaled_local_steps,
    scaled_up,
)

Keeping: TypeAlias = Callable[[ScalingLaw, float], float]
"""A function from a law and a factor of the number of devices to a factor of ε."""

Algorithm = TypeVar("Algorithm", bound=FederatedAlgorithm)


def same_accuracy(law: ScalingLaw, devices: float) -> float:
    """Keep ε: K times the devices take 1/K of the steps (Corollaries 2, 4 and 6).

    Example:
        >>> from fedbilevel.theory import LOCAL_BSGM_LAW
        >>> same_accuracy(LOCAL_BSGM_LAW, 4.0)
        1.0
    """
    return 1.0


def same_steps(law: ScalingLaw, devices: float) -> float:
    """Keep T: more devices reach a smaller ε (Corollaries 1, 3 and 5).

    Example:
        >>> from fedbilevel.theory import LOCAL_BSGM_LAW
        >>> same_steps(LOCAL_BSGM_LAW, 4.0)
        0.5
    """
    return law.accuracy(devices=devices, steps=1.0)


@register
@dataclass(frozen=True)
class RescaledSchedule:
    """A schedule with its rates multiplied, its steps rescaled, and an upper limit.

    Attributes:
        schedule: the tuned schedule.
        factor: factor of its rates.
        pace: number of its steps per step.
        ceiling: largest rate, at which a fresh sample's weight is 1.

    Example:
        >>> rate = RescaledSchedule(
        ...     lambda step: 0.1 / (1 + step), factor=2.0, pace=3.0, ceiling=0.15
        ... )
        >>> [round(float(rate(step)), 6) for step in (0, 1)]
        [0.15, 0.05]
    """

    schedule: Schedule
    factor: tree.Scalar
    pace: tree.Scalar
    ceiling: tree.Scalar

    def __call__(self, step: Step, /) -> tree.Scalar:
        """Return η_t."""
        inner_step = jnp.rint(jnp.asarray(step, float) * self.pace).astype(int)
        return jnp.minimum(self.factor * self.schedule(inner_step), self.ceiling)


def rescale(
    algorithm: Algorithm,
    *,
    devices_from: int,
    devices_to: int,
    keeping: Keeping = same_accuracy,
) -> Algorithm:
    """Return the algorithm with its settings rescaled by the corollaries.

    With r = `devices_to` / `devices_from` and the same accuracy, η is multiplied by r
    and p by 1/r, and for `LocalBSGVRM` also B, α and β by 1/r. The run then needs 1/r
    of the steps in the same number of rounds, or a few more rounds if p was rounded
    down. A schedule is multiplied like η and runs r times as fast. ρ_1, ρ_2, the batch
    size and the series are unchanged.

    With `keeping=same_steps`, the powers are those for an unchanged number of steps;
    the series then needs more terms (`theory.plan_for_steps` computes them).

    The corollaries hold up to constants, for homogeneous devices, and for settings
    limited by noise: if η is already near the largest rate that converges, r times η
    diverges. On a noisy quadratic, from 4 to 16 devices, with the same rounds and a
    quarter of the steps, the average stationarity was within 20 % of the old one; with
    only p changed it was more than twice the old one
    (`tests/algorithms/test_rescale.py`).

    Args:
        algorithm: tuned `LocalBSGM` or `LocalBSGVRM`.
        devices_from: number of participants of a round in the tuned run.
        devices_to: number of participants of a round in the new run.
        keeping: the constant quantity: `same_accuracy` or `same_steps`.

    Raises:
        ValueError: if p would be below 1, or a fresh sample's weight, αη or αη², above
            1. A schedule with an unknown largest rate is limited to that weight.
        TypeError: if no corollary covers this algorithm.

    Example:
        >>> from fedbilevel import LocalBSGVRM, NeumannSeries
        >>> tuned = LocalBSGVRM(
        ...     learning_rate=0.1,
        ...     hypergradient=NeumannSeries(terms=5, scale=0.5),
        ...     local_steps=20,
        ...     initial_batch_size=64,
        ... )
        >>> wide = rescale(tuned, devices_from=10, devices_to=40)
        >>> wide.learning_rate, wide.local_steps, wide.upper_mixing
        (0.4, 5, 0.25)
    """
    for name, count in (("devices_from", devices_from), ("devices_to", devices_to)):
        if count < 1:
            raise ValueError(f"rescale: {name} is {count}, expected at least 1.")
    law, ratio = law_of(algorithm), devices_to / devices_from
    factors = law.factors(devices=ratio, accuracy=keeping(law, ratio))
    old: Any = algorithm
    changes: dict[str, Any] = {
        "local_steps": scaled_local_steps(old.local_steps, factors.local_steps),
        "upper_mixing": old.upper_mixing * factors.mixing,
        "lower_mixing": old.lower_mixing * factors.mixing,
    }
    if law.initial_batch_size:
        changes["initial_batch_size"] = scaled_up(
            old.initial_batch_size, factors.initial_batch_size
        )
    mixing = changes["upper_mixing"], changes["lower_mixing"]
    rate = old.learning_rate
    if callable(rate) and not isinstance(rate, CubeRootDecay):
        ceiling = _ceiling(mixing, law.mixing_power)
        pace = 1 / factors.steps
        rate = RescaledSchedule(rate, factors.learning_rate, pace, ceiling)
    else:
        decays = isinstance(rate, CubeRootDecay)
        rate = factors.decay(rate) if decays else rate * factors.learning_rate
        largest = rate_at(rate, 0)
        for name, weight in zip(("upper_mixing", "lower_mixing"), mixing, strict=True):
            if is_number(largest) and is_number(weight):
                law.require_weight(name, float(weight), float(largest))
    rescaled: Algorithm = replace(old, learning_rate=rate, **changes)
    return rescaled


def law_of(algorithm: Any) -> ScalingLaw:
    """Return the scaling law of an algorithm's settings, from the corollaries.

    Raises:
        TypeError: if no corollary covers this algorithm.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> law_of(LocalBSGM(0.1, NeumannSeries(5, 0.5))).mixing_power
        1
    """
    scaled = find_layer(algorithm, Scaled)
    if scaled is None or scaled is not algorithm:  # the settings of a wrapper differ
        raise TypeError(
            f"The algorithm is {type(algorithm).__name__}, but the corollaries cover "
            "only LocalBSGM and LocalBSGVRM. Scale its settings by hand."
        )
    return scaled.scaling_law


def _ceiling(mixing: tuple[tree.Scalar, tree.Scalar], power: int) -> tree.Scalar:
    if all(map(is_number, mixing)):
        return float(max(map(float, mixing)) ** (-1 / power))
    return jnp.maximum(*mixing) ** (-1 / power)  # a grid of settings, or a traced one


def plan_from(
    algorithm: Algorithm, *, devices: int, steps: int, accuracy: float
) -> Plan:
    """Return the plan of a finished run, the anchor of other plans.

    Args:
        algorithm: a `LocalBSGM` or `LocalBSGVRM` with a `NeumannSeries`.
        devices: K, the number of participants of a round.
        steps: T, the number of local steps: rounds times `local_steps`.
        accuracy: ε, the mean over the run's steps of ‖∇Φ(x)‖² + L̃²‖y − y*(x)‖², from
            `total` of `metrics.stationarity`.

    Raises:
        TypeError: if no corollary covers this algorithm.
        ValueError: if no corollary covers its schedule.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> from fedbilevel.theory import plan_for_accuracy
        >>> tuned = LocalBSGM(0.1, NeumannSeries(7, 0.5), local_steps=20)
        >>> anchor = plan_from(tuned, devices=4, steps=1000, accuracy=0.02)
        >>> plan = plan_for_accuracy(
        ...     anchor, devices=8, accuracy=0.02, contraction=0.8
        ... )
        >>> with_plan(tuned, plan).learning_rate, plan.rounds
        (0.2, 50)
    """
    rate = _settings(algorithm)["learning_rate"]
    if callable(rate) and not isinstance(rate, CubeRootDecay):
        raise ValueError(
            "learning_rate is a schedule that no corollary covers. Plan from a run "
            "with a number or a CubeRootDecay for learning_rate."
        )
    return Plan(
        law_of(algorithm),
        devices=devices,
        accuracy=accuracy,
        steps=steps,
        **_settings(algorithm),
    )


def with_plan(algorithm: Algorithm, plan: Plan) -> Algorithm:
    """Return the algorithm with a plan's settings; its other settings are unchanged.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> tuned = LocalBSGM(0.1, NeumannSeries(7, 0.5), local_steps=20)
        >>> anchor = plan_from(tuned, devices=4, steps=9, accuracy=1.0)
        >>> with_plan(tuned, anchor) == tuned
        True
    """
    old: Any = algorithm
    changes = {name: getattr(plan, name) for name in _settings(algorithm)}
    changes["hypergradient"] = replace(old.hypergradient, terms=changes.pop("terms"))
    new: Algorithm = replace(old, **changes)
    return new


def _settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the settings of an algorithm that a plan has, by the plan's names."""
    names = ["local_steps", "batch_size", "learning_rate"]
    names += ["upper_mixing", "lower_mixing"]
    if law_of(algorithm).initial_batch_size:
        names += ["initial_batch_size"]
    old: Any = algorithm
    settings = {name: getattr(old, name) for name in names}
    return {**settings, "terms": old.hypergradient.terms}
