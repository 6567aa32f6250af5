"""From an algorithm that was run to a plan, and from a plan to an algorithm."""

from dataclasses import replace
from typing import Any

from fedbilevel.algorithms.rescale import Algorithm, law_of
from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.mathematics.theory.plans import Plan


def plan_of(algorithm: Algorithm, *, devices: int, steps: int, accuracy: float) -> Plan:
    """Return what was run and what it reached, for the planner to start from.

    Args:
        algorithm: a `LocalBSGM` or `LocalBSGVRM` with a `NeumannSeries`.
        devices: K, how many took part in a round.
        steps: T, local steps: rounds times `local_steps`.
        accuracy: ε, the mean over the run's steps of ‖∇Φ(x)‖² + L̃²‖y − y*(x)‖²: what
            `total` of `metrics.stationarity` returns.

    Raises:
        TypeError: if no corollary is about this algorithm.
        ValueError: if none is about its schedule.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> from fedbilevel.mathematics.theory import plan_for_accuracy
        >>> tried = LocalBSGM(0.1, NeumannSeries(7, 0.5), local_steps=20)
        >>> anchor = plan_of(tried, devices=4, steps=1000, accuracy=0.02)
        >>> plan = plan_for_accuracy(
        ...     anchor, devices=8, accuracy=0.02, contraction=0.8
        ... )
        >>> with_plan(tried, plan).learning_rate, plan.rounds
        (0.2, 50)
    """
    rate = _settings(algorithm)["learning_rate"]
    if callable(rate) and not isinstance(rate, CubeRootDecay):
        raise ValueError(
            "the corollaries are about a number or CubeRootDecay for learning_rate, "
            "not about other schedules; plan from a run with one of these."
        )
    return Plan(
        law_of(algorithm),
        devices=devices,
        accuracy=accuracy,
        steps=steps,
        **_settings(algorithm),
    )


def with_plan(algorithm: Algorithm, plan: Plan) -> Algorithm:
    """Return the algorithm with a plan's settings; its other settings stay.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> tried = LocalBSGM(0.1, NeumannSeries(7, 0.5), local_steps=20)
        >>> with_plan(tried, plan_of(tried, devices=4, steps=9, accuracy=1.0)) == tried
        True
    """
    old: Any = algorithm
    changes = {name: getattr(plan, name) for name in _settings(algorithm)}
    changes["hypergradient"] = replace(old.hypergradient, terms=changes.pop("terms"))
    planned: Algorithm = replace(old, **changes)
    return planned


def _settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return what a plan has of an algorithm, by the plan's names."""
    names = ["local_steps", "batch_size", "learning_rate"]
    names += ["upper_mixing", "lower_mixing"]
    if law_of(algorithm).opening_batch_size:
        names += ["opening_batch_size"]
    old: Any = algorithm
    settings = {name: getattr(old, name) for name in names}
    return {**settings, "terms": old.hypergradient.terms}
