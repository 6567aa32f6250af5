"""Measurements of devices for `AutoFedBiO`, and the limits of their values."""

import math
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, PyTree

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.adjoint import AdjointPoint
from fedbilevel.algorithms.protocol import Beside, Downlink, Phase, Units
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import arrays, keys, loops, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.hypergradients import Samples
from fedbilevel.mathematics.power_iteration import curvature_of
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper

OPENING_BATCHES = 4
"""Batches of each device whose curvature is measured before the first step."""
LOG_RANGE = 88.0
"""Under differential privacy, the largest logarithm of a squared curvature."""
LOSS_RANGE = 10.0
"""Under differential privacy, the largest logarithm of 1 + loss."""
GROWTH = 1.5
"""Under differential privacy, the factor by which votes change the curvature."""
FEW = 0.25
"""Under differential privacy, the share of votes that must not be noise."""
DRIFTING = 4
"""Power of the mean of curvatures over devices with several local steps, and over
time."""
HALF = 0.5
"""Weight of devices with diverging local steps above which a run always steps back."""


class Shared(NamedTuple):
    """Values that the server sends to all devices together with the point.

    Attributes:
        curvature: L, from which rates are computed.
        shrinkage: factor of all rates.
        level: level of the loss, for comparison with the devices' losses.
    """

    curvature: Float[Array, ""]
    shrinkage: Float[Array, ""]
    level: Float[Array, ""]


def mean_power(local_steps: int) -> int:
    """Return the power p of the mean of curvatures, (mean of L_k^p)^(1/p).

    With one local step, the mean is a step on the mean loss, whose curvature is at most
    the mean of the devices' curvatures. With several, each device must be stable by
    itself: the mean of fourth powers is close to the largest curvature.

    Example:
        >>> mean_power(1), mean_power(5)
        (1, 4)
    """
    return 1 if local_steps == 1 else DRIFTING


class Measurements(NamedTuple):
    """Measurements of a device in an exchange.

    Attributes:
        loss: f(x, y) on a batch, at the point it received.
        curvature: largest curvature of g on a batch over L, to `mean_power`.
        bend: zᵀ H z at the last step; in the mean, the vote on its sign.
    """

    loss: Float[Array, ""]
    curvature: Float[Array, ""]
    bend: Float[Array, ""]


class Report(NamedTuple):
    """Measurements that a device reports beside its update.

    Attributes:
        measured: measurements.
        steps: squared lengths of its first and of its longest step on y.
        broken: 1 if its local steps diverged, 0 otherwise.
    """

    measured: Measurements
    steps: Float[Array, "2"]
    broken: Float[Array, ""]


def curvature_query(problem: BilevelProblem, batch_size: int) -> Phase:
    """Return an exchange that sets the server's curvature and moves nothing."""

    def answer(
        downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
    ) -> Float[Array, ""]:
        batches = data.lower.draw(key, batch_size, OPENING_BATCHES)
        probes = keys.split(keys.key_of(0, like=key), OPENING_BATCHES)

        def curvature(batch: Batch, probe: RandomKey) -> Float[Array, ""]:
            hessian = partial(problem.hessian_product, *downlink, batch)
            return curvature_of(hessian, downlink[1], probe)

        # A loop, so that the product is compiled once for any number of batches.
        curvatures = loops.map_each(curvature, batches, probes)
        return number(arrays.mean(curvatures**2))

    query = queries.ask(
        "curvature",
        lambda server: (server.x, server.y),
        answer,
        lambda server, mean, key: server._replace(curvature=number(arrays.sqrt(mean))),
    )
    return query._replace(
        beside=Beside(
            limit=lambda beside, downlink: arrays.maximum(beside, 0.0),
            gauge=lambda beside, downlink: (arrays.sqrt(beside),),
            units=Units(
                narrow=lambda beside, downlink: _logarithm(beside),
                widen=lambda mean, downlink: _exponential(mean),
            ),
        )
    )


def measure(
    problem: BilevelProblem,
    point: AdjointPoint,
    samples: Samples,
    level: Float[Array, ""],
    key: RandomKey,
    power: int,
) -> Measurements:
    """Return the measurements of a device at a point, relative to a level of L."""
    (batch,) = samples.curvature
    hessian = partial(problem.hessian_product, point.x, point.y, batch)
    return Measurements(
        loss=number(problem.upper_loss(point.x, point.y, samples.upper)),
        # Without the division, fourth powers would overflow single precision.
        curvature=(number(curvature_of(hessian, point.y, key)) / unit(level)) ** power,
        bend=arrays.number(0.0, like=level),  # set by each local step
    )


def bend(
    problem: BilevelProblem, point: AdjointPoint, samples: Samples
) -> Float[Array, ""]:
    """Return zᵀ H z; XLA reuses the Hessian product of the step on z."""
    (batch,) = samples.curvature
    x, y, z = point
    return number(tree.inner(z, problem.hessian_product(x, y, batch, z)))


def curvature_along(
    problem: BilevelProblem, point: AdjointPoint, y: Lower, samples: Samples
) -> Float[Array, ""]:
    """Return the curvature between two points: far from y*, it may be 0 at both."""
    x, before, _ = point
    change = tree.subtract(
        problem.lower_gradient(x, y, samples.lower),
        problem.lower_gradient(x, before, samples.lower),
    )
    length = number(tree.squared_norm(tree.subtract(y, before)))
    ratio = number(tree.squared_norm(change)) / arrays.where(length > 0, length, 1.0)
    return arrays.sqrt(arrays.where(length > 0, ratio, 0))


def ran_away(steps: Float[Array, "2"], y: Lower) -> Bool[Array, ""]:
    """Return whether a step on y was ten times y and a hundred times the first step."""
    first, longest = steps
    far = longest > 100.0 * number(tree.squared_norm(y))
    # Compared with a first step of length 0, as at y*(x), every step is infinite.
    diverged: Bool[Array, ""] = far & (first > 0) & (longest > 1e4 * first)
    return diverged


def _logarithm(value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the logarithm of a number, in units of `LOG_RANGE`."""
    return arrays.log(arrays.maximum(value, math.exp(-LOG_RANGE))) / LOG_RANGE


def _exponential(value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return arrays.exp(LOG_RANGE * arrays.clip(value, -1.0, 1.0))


def unit(level: Float[Array, ""]) -> Float[Array, ""]:
    """Return a level by which numbers can be divided: 1 in place of 0."""
    return arrays.where(level > 0, level, 1.0)


def number(value: Any) -> Array:
    """Return a number in JAX's default precision, or a tensor."""
    return arrays.number(value, like=value)


def limits_of(power: int) -> Beside:
    """Return the limits of a `Report`: no device must outweigh the others.

    Args:
        power: `mean_power` of the curvatures.

    Example:
        >>> limits_of(power=4).units is None
        False
    """
    units = Units(partial(_narrow, power), partial(_widen, power))
    return Beside(_limit, partial(_gauge, power), units)


def _limit(report: Report, downlink: Downlink) -> Report:
    measured, steps, broken = report
    measured = measured._replace(
        curvature=arrays.maximum(measured.curvature, 0.0),
        bend=arrays.sign(measured.bend),
    )
    return Report(measured, arrays.maximum(steps, 0.0), arrays.clip(broken, 0.0, 1.0))


def _gauge(power: int, report: Report, downlink: Downlink) -> tuple[PyTree, ...]:
    loss, curvature, _ = report.measured
    _, _, shared = downlink
    # An honest loss may be many times the others if these are small. Relative to the
    # level of losses before x moved, it is not.
    loss = (arrays.absolute(loss) + shared.level) / unit(shared.level)
    return curvature ** (1 / power), report.steps, loss


def _narrow(power: int, report: Report, downlink: Downlink) -> PyTree:
    # Votes have bounds, and noise below a threshold does not change them. The noise of
    # a measured curvature would raise L in every round, since L rises at once and
    # decays slowly.
    (loss, curvature, bent), steps, broken = report
    point, _, _ = downlink
    loss = arrays.sign(loss) * arrays.log1p(arrays.absolute(loss))
    votes = (
        number(curvature > GROWTH**power),
        number(curvature < GROWTH**-power),
        number(bent < 0),
        arrays.maximum(broken, number(ran_away(steps, point.y))),
    )
    return loss / LOSS_RANGE, arrays.stack(votes) / 2


def _widen(power: int, mean: PyTree, downlink: Downlink) -> Report:
    loss, votes = LOSS_RANGE * mean[0], 2 * mean[1]
    larger, smaller, negative, diverged = votes
    measured = Measurements(
        loss=arrays.sign(loss) * arrays.expm1(arrays.absolute(loss)),
        curvature=arrays.where(
            larger > FEW,
            GROWTH**power,
            arrays.where(smaller > 1.0 - FEW, GROWTH**-power, 1.0),
        ),
        bend=HALF - negative,
    )
    broken = arrays.where(diverged > FEW, diverged, 0.0)
    return Report(measured, 0 * votes[:2], broken)
