"""Search for the step that makes a run diverge: lower, adjoint, series or upper."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.algorithms.optional import with_draws_of
from fedbilevel.algorithms.sampling import draw_hypergradient_samples
from fedbilevel.algorithms.step_sizes import (
    DeclaredSetting,
    StepSize,
    at_step,
    settings_of,
    step_sizes,
    upper_steps,
    value_at,
    value_of,
    with_values,
)
from fedbilevel.algorithms.wrapper import innermost, layers
from fedbilevel.data.examples import RandomKey, StoredData, one_device
from fedbilevel.data.weights import Weights, level_weights, with_levels
from fedbilevel.engines.run import Run
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Role
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.metrics.full_data import full_data, full_data_problem
from fedbilevel.metrics.trials import FIXED, Trials
from fedbilevel.metrics.untried_steps import check_known_steps, untried_steps
from fedbilevel.transforms.transformed import noise_of

logger = logging.getLogger("fedbilevel")
CURES = 8
"""The most smaller values of a setting that are tried."""
SERIES_GROWTH = 2.0
"""A series is unstable if its last power exceeds its first by this factor."""
SERIES_DEVICES, SERIES_DRAWS = 16, 4
"""The most devices, and the draws of each, on which a series is tried."""


class Instability(NamedTuple):
    """A step that is too large.

    Attributes:
        role: part of the algorithm that the setting moves.
        setting: setting to lower.
        value: current value of the setting.
        cure: value with which a trial was stable; NaN if no value was.
        evidence: observation that shows the instability.

    Example:
        >>> print(Instability(Role.LOWER, "lower_rate", 3.0, 0.5, "y diverges"))
        the lower step was too large: y diverges; set lower_rate, now 3, to at most 0.5
    """

    role: Role
    setting: str
    value: float
    cure: float
    evidence: str

    def __str__(self) -> str:
        cure = f"to at most {self.cure:.2g}" if isfinite(self.cure) else "much lower"
        return (
            f"the {self.role.value} was too large: {self.evidence}; set "
            f"{self.setting}, now {self.value:.3g}, {cure}"
        )


def find_instabilities(
    run: Run,
    x: Upper,
    y: Lower,
    *,
    step: int = 0,
    rounds: int = 60,
    seconds: float = 60.0,
) -> tuple[Instability, ...]:
    """Find the steps of a run's algorithm that are too large at a point.

    Each step is tried separately, with all others fixed: y in a trial run with x
    fixed, the adjoint with x and y fixed, the series on a few draws. A step is too
    large if the moves of its variable grow, or if it exceeds 2 / L, beyond which
    gradient steps on a loss of curvature L diverge. The upper step is tried last: it is
    too large if the upper loss rises in a trial run and does not with a smaller upper
    rate. Each cure was tried in the same way.

    Args:
        run: run with the algorithm to test. The types of its settings, such as
            `LowerRate` of `fedbilevel.algorithms`, declare what they move. The log
            names numbers of undeclared effect. The data of all devices are loaded at
            once.
        x: upper variable of the point; pass the best point of the run.
        y: lower variable of the point.
        step: number of local steps before the point, for a schedule.
        rounds: number of rounds of a trial run.
        seconds: time limit of the search; an interrupted trial is ignored.

    Returns:
        Steps that are too large, in this order: lower, adjoint, series; the upper step
        only if no other is. After the time limit, the steps found so far, with a cure
        of NaN if no trial of a cure was complete.

    Raises:
        TimeoutError: if the time limit ends before a step is found.
        ValueError: if the algorithm declares no such settings, as `AutoFedBiO`, or adds
            noise.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples, Run
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> devices = InMemoryDevices([LocalExamples(np.ones(1), np.ones(1))])
        >>> algorithm = FedBiO(0.1, lower_rate=12.0)  # 1.2 > 2 / L = 1
        >>> run = Run(problem, algorithm, devices, 3.0, 0.0, rounds=100)
        >>> result = find_instabilities(run, run.x, run.y, seconds=600.0)
        >>> [(step.role.name, step.setting) for step in result]
        [('LOWER', 'lower_rate')]
    """
    algorithm = run.algorithm
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
    *wrappers, inner = layers(algorithm)
    base = at_step(inner, step)
    x, y = jax.tree.map(on_host, (x, y))
    trials = Trials(
        replace(run, algorithm=with_draws_of(algorithm, base), x=x, y=y, rounds=rounds),
        until=time.monotonic() + seconds,
    )
    try:
        curvature = largest_curvature(
            run.problem, run.devices, x, y, weights=run.weights
        )
    except ArithmeticError:
        return ()  # The losses are not finite at this point.
    sizes = step_sizes(base if step else inner)  # later, the warm start is over
    point = _Point(trials, base, sizes, curvature)
    instabilities, timed_out = _collect(
        TESTS[size.role](point, size) for size in sizes if size.role in TESTS
    )
    if not (instabilities or timed_out):
        optimised = base
        for wrapper in wrappers:
            if any(item.role is Role.OPTIMISER for item in settings_of(wrapper)):
                optimised = replace(wrapper, algorithm=base)
        instabilities, timed_out = _collect(
            _upper(trials, optimised, setting) for setting in upper_steps(optimised)
        )
    if timed_out and not instabilities:
        raise TimeoutError(
            f"The search for a step that is too large ended after {seconds:g} seconds "
            "without a result. Pass a larger value of seconds to find_instabilities."
        )
    return tuple(instabilities)


class _Point(NamedTuple):
    """An algorithm at a point where its steps are tried.

    Attributes:
        trials: trial runs from the point.
        base: algorithm of the trials.
        sizes: its step sizes.
        curvature: largest curvature of the mean lower loss.
    """

    trials: Trials
    base: Any
    sizes: Sequence[StepSize]
    curvature: float


def _collect(tests: Iterable[Iterator[Instability]]) -> tuple[list[Instability], bool]:
    """Return the instabilities of all tests, and whether one timed out."""
    instabilities: list[Instability] = []
    timed_out = False
    for test in tests:
        try:
            # A test may raise after its first instability, which is kept.
            for instability in test:
                instabilities.append(instability)
        except TimeoutError:
            timed_out = True
    return instabilities, timed_out


def _beyond_limit(point: _Point, size: StepSize) -> Iterator[Instability]:
    """Compare steps along mean derivatives with the curvature, without a trial."""
    if size.value * point.curvature > size.limit:
        evidence, cure = _beyond(size, point.curvature), 1 / point.curvature
        yield Instability(size.role, size.name, size.value, cure, evidence)


def _gradient_steps(point: _Point, size: StepSize) -> Iterator[Instability]:
    """Test the steps of a variable on a loss of a curvature, with the others fixed."""
    trials, base, sizes, curvature = point
    variable = "y" if size.role is Role.LOWER else "adjoint"
    # A divergent series must not make the uploads of y infinite.
    fixed = with_values(
        base,
        {
            other.name: FIXED
            for other in sizes
            if other is not size and other.role is not Role.WARM_START
        },
    )
    trial = trials.run(fixed, variable)
    if trial.excluded is not None:
        # A single device diverges, between two averages.
        curvature = _curvature(trials, trial.excluded)
    beyond = size.factor * size.value * curvature > size.limit
    if not beyond and not trial.complete:
        raise TimeoutError
    if trial.stable and not beyond:
        return
    evidence = (
        _beyond(size, curvature)
        if beyond
        else f"the moves of {variable} grew over {trial.rounds} rounds with "
        f"{'x' if size.role is Role.LOWER else 'x and y'} fixed, because batches have "
        f"a larger curvature than the mean, L = {curvature:.3g}"
    )
    if trial.excluded is not None:
        # If a device is excluded with any rate, its steps are not the cause.
        evidence = f"device {trial.excluded} diverges: {evidence}"
    first = min(size.value / 2, size.limit / (2 * size.factor * curvature))
    cure = _cure(
        first,
        lambda smaller: (
            trials.run(with_values(fixed, {size.name: smaller}), variable).stable
        ),
        trials,
    )
    if beyond or isfinite(cure) or trial.excluded is None:
        yield Instability(size.role, size.name, size.value, cure, evidence)
    elif trials.time_is_up:
        raise TimeoutError


def _series(point: _Point, size: StepSize) -> Iterator[Instability]:
    """Test a series on the batches of each device."""
    trials, base, _, curvature = point
    series: NeumannSeries = value_at(base, size.name.rpartition(".")[0])
    growth, device = max(_growths(trials, base, series))
    if growth > SERIES_GROWTH:
        curvature = _curvature(trials, device)
        evidence = (
            f"its last power is {growth:.2g} times its first on device {device}, where "
            f"2 / L = {2 / curvature:.3g}"
        )
    elif size.value * curvature > size.limit:
        evidence = _beyond(size, curvature)
    else:
        return

    def stable(smaller: float) -> bool:
        shorter = NeumannSeries(series.terms, smaller)
        return max(_growths(trials, base, shorter))[0] <= SERIES_GROWTH

    cure = _cure(min(size.value / 2, 1 / curvature), stable, trials)
    yield Instability(size.role, size.name, size.value, cure, evidence)


TESTS = {
    Role.WARM_START: _beyond_limit,
    Role.LOWER: _gradient_steps,
    Role.ADJOINT: _gradient_steps,
    Role.SERIES: _series,
    Role.MEAN_SERIES: _beyond_limit,
}
"""The tests of step sizes by role."""


def _growths(
    trials: Trials, base: Any, series: NeumannSeries
) -> Iterator[tuple[float, int]]:
    """Yield the growth of a series on the batches of a device, and the device."""
    run = trials.template
    devices, _ = with_levels(run.devices, run.weights, run.x)
    levels = level_weights(run.devices, run.weights)
    weighted = np.flatnonzero(levels.lower)
    indices = np.linspace(0, len(weighted) - 1, min(len(weighted), SERIES_DEVICES))
    for device in weighted[indices.astype(int)].tolist():
        data = one_device(devices.cohort(np.array([device])))
        growths = [
            float(
                _growth(
                    series,
                    run.x,
                    run.y,
                    data,
                    jax.random.fold_in(jax.random.key(run.seed), draw),
                    problem=for_devices(run.problem.for_jax),
                    batch_size=value_of(base, Role.BATCH_SIZE, 16),
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


def _upper(
    trials: Trials, algorithm: Any, setting: DeclaredSetting
) -> Iterator[Instability]:
    name, rate = setting.name, float(setting.value)
    upper, _ = full_data(trials.template.devices, trials.template.weights, 4096)
    loss = jax.jit(full_data_problem(trials.template.problem).upper_loss)
    before = float(loss(trials.template.x, trials.template.y, upper))
    if not isfinite(before):
        return  # The loss cannot show whether a step is too large.
    trial = trials.run(algorithm, "x")
    if not trial.complete:
        raise TimeoutError
    after = float(loss(trial.x, trial.y, upper))
    rise = after - before
    if trial.stable and not (rise > 0 or not isfinite(rise)):
        return
    ends: dict[float, float] = {}

    def stable(smaller: float) -> bool:
        retrial = trials.run(with_values(algorithm, {name: smaller}), "x")
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
        Role.UPPER,
        name,
        rate,
        cure,
        f"the upper loss rose from {before:.4g} to {after:.4g} in {trial.rounds} "
        f"rounds, but with {name} = {cure:.2g} it ended at {ends[cure]:.4g}, and y "
        "is stable",
    )


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


def _curvature(trials: Trials, device: int) -> float:
    weights = np.zeros(trials.template.devices.device_count)
    weights[device] = 1.0
    return largest_curvature(
        trials.template.problem,
        trials.template.devices,
        trials.template.x,
        trials.template.y,
        weights=Weights(lower=weights),
    )


def _beyond(size: StepSize, curvature: float) -> str:
    return (
        f"{size.rate}{size.name} = {size.factor * size.value:.3g} exceeds "
        f"{size.limit:.3g} / L = {size.limit / curvature:.3g}, where L = "
        f"{curvature:.3g} is the largest curvature of the lower loss"
    )
