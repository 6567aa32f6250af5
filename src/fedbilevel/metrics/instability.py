"""Search for the step that makes a run diverge: lower, adjoint, series or upper."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedbilevel.algorithms.fednest import FedNest
from fedbilevel.algorithms.local_bsgm import LocalBSGM
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.sampling import draw_hypergradient_samples
from fedbilevel.algorithms.server_optimiser import WithServerOptimiser
from fedbilevel.algorithms.wrapper import innermost, layers
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import RandomKey, StoredData, one_device
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.preparation import RunSpec
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.schedules import rate_at
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.metrics.full_data import full_data, full_data_problem
from fedbilevel.metrics.trials import FIXED, Trials, with_settings
from fedbilevel.metrics.untried_steps import check_known_steps, untried_steps
from fedbilevel.transforms.transformed import noise_of

logger = logging.getLogger("fedbilevel")
CURES = 8
"""The most smaller values of a setting that are tried."""
SERIES_GROWTH = 2.0
"""A series is unstable if its last power exceeds its first by this factor."""
SERIES_DEVICES, SERIES_DRAWS = 16, 4
"""The most devices, and the draws of each, on which a series is tried."""


class Level(Enum):
    """A part of the algorithm with a separate step length."""

    LOWER = "lower step"
    ADJOINT = "adjoint step"
    SERIES = "scale of the series"
    UPPER = "upper step"


class Instability(NamedTuple):
    """A step that is too large.

    Attributes:
        level: part of the algorithm.
        setting: setting to lower.
        value: current value of the setting.
        cure: value with which a trial was stable; NaN if no value was.
        evidence: observation that shows the instability.

    Example:
        >>> print(Instability(Level.LOWER, "lower_rate", 3.0, 0.5, "y diverges"))
        the lower step was too large: y diverges; set lower_rate, now 3, to at most 0.5
    """

    level: Level
    setting: str
    value: float
    cure: float
    evidence: str

    def __str__(self) -> str:
        cure = f"to at most {self.cure:.2g}" if isfinite(self.cure) else "much lower"
        return (
            f"the {self.level.value} was too large: {self.evidence}; set "
            f"{self.setting}, now {self.value:.3g}, {cure}"
        )


def find_instabilities(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    step: int = 0,
    rounds: int = 60,
    seconds: float = 60.0,
    seed: int = 0,
    participation: Participation = FullParticipation(),
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    limits: Limits = NO_LIMITS,
) -> tuple[Instability, ...]:
    """Find the steps of an algorithm that are too large at a point.

    Each level is tried separately, with all others fixed: y in a trial run with x
    fixed, the adjoint with x and y fixed, the series on a few draws. A step is too
    large if the moves of its variable grow, or if it exceeds 2 / L, beyond which
    gradient steps on a loss of curvature L diverge. The upper step is tried last: it is
    too large if the upper loss rises in a trial run and does not with a smaller upper
    rate. Each cure was tried in the same way.

    Args:
        problem: the two losses.
        algorithm: algorithm with the settings to test: `learning_rate`, `upper_rate`
            and `lower_rate`, and others of known names. The log names step sizes that
            are not tried.
        devices: data of all devices, loaded at once.
        x: upper variable of the point; pass the best point of the run.
        y: lower variable of the point.
        step: number of local steps before the point, for a schedule.
        rounds: number of rounds of a trial run.
        seconds: time limit of the search; an interrupted trial is ignored.
        seed: seed of the samples.
        participation: as for `run`.
        weights: as for `run`.
        engine: engine that executes the devices' work.
        limits: as for `run`.

    Returns:
        Steps that are too large, in this order: lower, adjoint, series; the upper step
        only if no other is. After the time limit, the steps found so far, with a cure
        of NaN if no trial of a cure was complete.

    Raises:
        TimeoutError: if the time limit ends before a step is found.
        ValueError: if the algorithm has no such settings, as `AutoFedBiO`, or adds
            noise.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> devices = InMemoryDevices([LocalExamples(np.ones(1), np.ones(1))])
        >>> algorithm = FedBiO(0.1, lower_rate=12.0)  # 1.2 > 2 / L = 1
        >>> result = find_instabilities(
        ...     problem, algorithm, devices, 3.0, 0.0, seconds=600.0
        ... )
        >>> [(step.level.name, step.setting) for step in result]
        [('LOWER', 'lower_rate')]
    """
    if noise_of(algorithm) is not None:
        raise ValueError(
            "find_instabilities: the algorithm adds noise for privacy, but trials use "
            "the data without noise. Pass the algorithm without its transforms if its "
            "result stays private."
        )
    check_known_steps(algorithm)
    untried = untried_steps(algorithm)
    if untried:
        logger.warning(
            "find_instabilities does not try %s, whose effect on the steps of %s it "
            "does not know.",
            ", ".join(untried),
            type(innermost(algorithm)).__name__,
        )
    # Steps are tried without the transforms of uploads.
    settings: Any = innermost(algorithm)
    optimisers = [
        layer.optimiser
        for layer in layers(algorithm)
        if isinstance(layer, WithServerOptimiser)
    ]
    optimiser = optimisers[0] if optimisers else None
    eta = float(rate_at(settings.learning_rate, step))
    base = with_settings(settings, learning_rate=eta, warm_start=None)
    x, y = jax.tree.map(on_host, (x, y))
    spec = RunSpec(
        problem,
        base,
        devices,
        x,
        y,
        rounds,
        seed,
        participation,
        weights,
        engine,
        limits,
    )
    trials = Trials(spec, until=time.monotonic() + seconds)
    try:
        curvature = largest_curvature(problem, devices, x, y, weights=weights)
    except ArithmeticError:
        return ()  # The losses are not finite at this point.
    levels = (
        _lower(trials, settings, base, eta, curvature, step),
        _adjoint(trials, base, eta, curvature),
        _series(trials, base, curvature),
    )
    instabilities, timed_out = _collect(*levels)
    if not (instabilities or timed_out):
        instabilities, timed_out = _collect(_upper(trials, base, optimiser))
    if timed_out and not instabilities:
        raise TimeoutError(
            f"The search for a step that is too large ended after {seconds:g} seconds "
            "without a result. Pass a larger value of seconds to find_instabilities."
        )
    return tuple(instabilities)


def _collect(*levels: Iterator[Instability]) -> tuple[list[Instability], bool]:
    """Return the instabilities of all levels, and whether a level timed out."""
    instabilities: list[Instability] = []
    timed_out = False
    for level in levels:
        try:
            # A level may raise after its first instability, which is kept.
            for instability in level:
                instabilities.append(instability)
        except TimeoutError:
            timed_out = True
    return instabilities, timed_out


def _lower(
    trials: Trials, settings: Any, base: Any, eta: float, curvature: float, step: int
) -> Iterator[Instability]:
    warm_start = getattr(settings, "warm_start", None)
    if warm_start is not None and not step:
        rate = float(rate_at(warm_start.learning_rate, 0))
        if rate * curvature > 2:
            yield Instability(
                Level.LOWER,
                "warm_start.learning_rate",
                rate,
                1 / curvature,
                _beyond("warm_start.learning_rate", rate, 2.0, curvature),
            )
    fixed = with_settings(_without_series(base), upper_rate=FIXED, adjoint_rate=FIXED)
    # y ← y − a v, v ← (1 − b) v + b λ y: both roots lie within the unit circle if
    # a λ < 2 (2 − b) / b. With variance reduction v = λ y, and the limit is 2.
    limit = 2.0
    if isinstance(base, LocalBSGM):
        weight = min(1.0, float(base.lower_mixing) * eta)
        limit = 2 * (2 - weight) / weight
    factor = eta
    if getattr(base, "local_steps", 1) == 1:
        factor *= float(getattr(base, "server_rate", 1.0))
    yield from _gradient_steps(
        trials, fixed, Level.LOWER, "y", factor, limit, curvature
    )


def _adjoint(
    trials: Trials, base: Any, eta: float, curvature: float
) -> Iterator[Instability]:
    if not hasattr(base, "adjoint_rate"):
        return
    fixed = with_settings(base, upper_rate=FIXED, lower_rate=FIXED)
    factor = eta
    if base.local_steps == 1:
        factor *= float(getattr(base, "server_rate", 1.0))
    yield from _gradient_steps(
        trials, fixed, Level.ADJOINT, "adjoint", factor, 2.0, curvature
    )


def _gradient_steps(
    trials: Trials,
    fixed: Any,
    level: Level,
    variable: str,
    factor: float,
    limit: float,
    curvature: float,
) -> Iterator[Instability]:
    """Test steps of length factor · rate on a loss of a curvature."""
    setting = "lower_rate" if level is Level.LOWER else "adjoint_rate"
    rate = float(getattr(fixed, setting))
    trial = trials.run(fixed, variable)
    if trial.excluded is not None:
        # A single device diverges, between two averages.
        weights = np.zeros(trials.spec.devices.device_count)
        weights[trial.excluded] = 1.0
        curvature = _curvature(trials, weights)
    product = "learning_rate · " + setting
    beyond = factor * rate * curvature > limit
    if not beyond and not trial.complete:
        raise TimeoutError
    if trial.stable and not beyond:
        return
    evidence = (
        _beyond(product, factor * rate, limit, curvature)
        if beyond
        else f"the moves of {variable} grew over {trial.rounds} rounds with "
        f"{'x' if level is Level.LOWER else 'x and y'} fixed, because batches have a "
        f"larger curvature than the mean, L = {curvature:.3g}"
    )
    if trial.excluded is not None:
        # If a device is excluded with any rate, its steps are not the cause.
        evidence = f"device {trial.excluded} diverges: {evidence}"
    first = min(rate / 2, limit / (2 * factor * curvature))
    cure = _cure(
        first,
        lambda smaller: (
            trials.run(with_settings(fixed, **{setting: smaller}), variable).stable
        ),
        trials,
    )
    if beyond or isfinite(cure) or trial.excluded is None:
        yield Instability(level, setting, rate, cure, evidence)
    elif trials.time_is_up:
        raise TimeoutError


def _series(trials: Trials, base: Any, curvature: float) -> Iterator[Instability]:
    name = "series" if hasattr(base, "series") else "hypergradient"
    series = getattr(base, name, None)
    if not isinstance(series, NeumannSeries):
        return
    scale = float(series.scale)
    # FedNest averages every product, so its series uses the mean Hessian.
    growths = [] if isinstance(base, FedNest) else list(_growths(trials, base, series))
    growth, device = max(growths, default=(nan, 0))
    if growth > SERIES_GROWTH:
        weights = np.zeros(trials.spec.devices.device_count)
        weights[device] = 1.0
        curvature = _curvature(trials, weights)
        evidence = (
            f"its last power is {growth:.2g} times its first on device {device}, where "
            f"2 / L = {2 / curvature:.3g}"
        )
    elif scale * curvature > 2:
        evidence = _beyond("scale", scale, 2.0, curvature)
    else:
        return

    def stable(smaller: float) -> bool:
        if isinstance(base, FedNest):
            return True
        shorter = NeumannSeries(series.terms, smaller)
        return max(_growths(trials, base, shorter))[0] <= SERIES_GROWTH

    cure = _cure(min(scale / 2, 1 / curvature), stable, trials)
    yield Instability(Level.SERIES, f"{name}.scale", scale, cure, evidence)


def _growths(
    trials: Trials, base: Any, series: NeumannSeries
) -> Iterator[tuple[float, int]]:
    """Yield the growth of a series on the batches of a device, and the device."""
    count = trials.spec.devices.device_count
    weighted = np.arange(count)
    if trials.spec.weights is not None:
        weighted = np.flatnonzero(np.asarray(trials.spec.weights))
    indices = np.linspace(0, len(weighted) - 1, min(len(weighted), SERIES_DEVICES))
    for device in weighted[indices.astype(int)].tolist():
        data = one_device(trials.spec.devices.cohort(np.array([device])))
        growths = [
            float(
                _growth(
                    series,
                    trials.spec.x,
                    trials.spec.y,
                    data,
                    jax.random.fold_in(jax.random.key(trials.spec.seed), draw),
                    problem=trials.spec.problem.for_jax,
                    batch_size=base.batch_size,
                )
            )
            for draw in range(SERIES_DRAWS)
        ]
        mean = float(np.mean(growths))
        yield (mean if isfinite(mean) else float("inf")), device


@partial(jax.jit, static_argnames=("problem", "batch_size"))
def _growth(
    series: NeumannSeries,
    x: Upper,
    y: Lower,
    data: StoredData,
    key: RandomKey,
    *,
    problem: BilevelProblem,
    batch_size: int,
) -> Float[Array, ""]:
    samples = draw_hypergradient_samples(data, key, batch_size, series.curvature_draws)
    _, power = problem.upper_gradients(x, y, samples.upper)
    first = tree.squared_norm(power)
    for batch in reversed(samples.curvature):
        product = problem.hessian_product(x, y, batch, power)
        power = tree.add_scaled(power, -series.scale, product)
    return jnp.sqrt(tree.squared_norm(power) / first)


def _upper(trials: Trials, base: Any, optimiser: Any) -> Iterator[Instability]:
    setting, rate, with_rate = _upper_setting(base, optimiser)
    if not isfinite(rate):
        return
    upper, _ = full_data(trials.spec.devices, trials.spec.weights, 4096)
    loss = jax.jit(full_data_problem(trials.spec.problem).upper_loss)
    before = float(loss(trials.spec.x, trials.spec.y, upper))
    if not isfinite(before):
        return  # The loss cannot show whether a step is too large.
    trial = trials.run(with_rate(rate), "x")
    if not trial.complete:
        raise TimeoutError
    after = float(loss(trial.x, trial.y, upper))
    rise = after - before
    if trial.stable and not (rise > 0 or not isfinite(rise)):
        return
    ends: dict[float, float] = {}

    def stable(smaller: float) -> bool:
        retrial = trials.run(with_rate(smaller), "x")
        ends[smaller] = float(loss(retrial.x, retrial.y, upper))
        # A tenth of the rise, or of the loss, may be noise.
        noise = 0.1 * float(np.nanmin([abs(rise), abs(before)]))
        return retrial.stable and ends[smaller] <= before + noise

    cure = _cure(rate / 4, stable, trials, factor=4.0)
    if not isfinite(cure):
        if trials.time_is_up:
            raise TimeoutError
        return  # No smaller rate helps, so there is another cause.
    yield Instability(
        Level.UPPER,
        setting,
        rate,
        cure,
        f"the upper loss rose from {before:.4g} to {after:.4g} in {trial.rounds} "
        f"rounds, but with {setting} = {cure:.2g} it ended at {ends[cure]:.4g}, and y "
        "is stable",
    )


def _upper_setting(
    base: Any, optimiser: Any
) -> tuple[str, float, Callable[[float], Any]]:
    """Return the setting that moves x, its value, and a function to change it."""
    if optimiser is None:
        return (
            "upper_rate",
            float(base.upper_rate),
            lambda rate: with_settings(base, upper_rate=rate),
        )
    numbers = getattr(optimiser, "numbers", {})

    def with_rate(rate: float) -> WithServerOptimiser:
        smaller = replace(optimiser, numbers={**numbers, "learning_rate": rate})
        return WithServerOptimiser(base, smaller)

    # A schedule, or a custom optax transformation, has no number to lower.
    rate = float(numbers.get("learning_rate", nan))
    return "server_optimiser.learning_rate", rate, with_rate


def _cure(
    first: float, stable: Callable[[float], bool], trials: Trials, factor: float = 2.0
) -> float:
    """Return the first stable value of a decreasing sequence, or NaN."""
    for number in range(CURES):
        if trials.time_is_up:
            break
        value = float(first / factor**number)
        if stable(value):
            return value
    return nan


def _without_series(base: Any) -> Any:
    # x is fixed, and a divergent series must not make the uploads of y infinite.
    for name in ("hypergradient", "series"):
        series = getattr(base, name, None)
        if isinstance(series, NeumannSeries):
            return with_settings(base, **{name: with_settings(series, scale=FIXED)})
    return base


def _curvature(trials: Trials, weights: ArrayLike) -> float:
    return largest_curvature(
        trials.spec.problem,
        trials.spec.devices,
        trials.spec.x,
        trials.spec.y,
        weights=weights,
    )


def _beyond(name: str, value: float, limit: float, curvature: float) -> str:
    return (
        f"{name} = {value:.3g} exceeds {limit:.3g} / L = {limit / curvature:.3g}, "
        f"where L = {curvature:.3g} is the largest curvature of the lower loss"
    )
