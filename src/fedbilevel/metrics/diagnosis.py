"""Is a federation homogeneous enough for methods that use own hypergradients?"""

from collections.abc import Sequence
from enum import Enum
from math import sqrt
from typing import NamedTuple

import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int, PyTree
from numpy.typing import ArrayLike
from scipy import stats

from fedbilevel.algorithms.survey import Survey, SurveyState
from fedbilevel.data.devices import Devices
from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.rounds import run
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

CONFIDENCE = 0.95
"""Of the limits between which the distance lies."""


class Verdict(Enum):
    """What a diagnosis says.

    Example:
        >>> Verdict.HOMOGENEOUS.name
        'HOMOGENEOUS'
    """

    HOMOGENEOUS = (
        "homogeneous enough: the mean of the devices' own hypergradients is within the "
        "tolerance of the global one, so LocalBSGM, LocalBSGVRM and LFedNest may be "
        "used; LocalBSGVRM needs the fewest samples in theory."
    )
    HETEROGENEOUS = (
        "heterogeneous: the mean of the devices' own hypergradients points elsewhere "
        "than the global one, so LocalBSGM, LocalBSGVRM and LFedNest would settle at a "
        "biased point; use FedBiO, FedBiOAcc, SimFBO or FedNest, or ShroFBO where "
        "devices make unequal numbers of local steps."
    )
    UNCLEAR = (
        "unclear: the sampling noise hides the distance; raise batch_size or rounds, "
        "or use FedBiO, FedBiOAcc, SimFBO or FedNest, which are right in either case."
    )


class Diagnosis(NamedTuple):
    """How far the mean of own hypergradients is from the global one (Lemma 1).

    Attributes:
        distance: ‖mean own − global‖, relative to the longer of the global
            hypergradient and its indirect part J̄ H̄⁻¹ b̄, freed of sampling noise.
        low: the lower 95 % confidence limit of the distance.
        high: the upper 95 % confidence limit of the distance.
        tolerance: what distance was to count as small.
        costs: what the survey has spent.

    Example:
        >>> Diagnosis(0.5, low=0.4, high=0.6, tolerance=0.1, costs=Costs()).verdict.name
        'HETEROGENEOUS'
        >>> Diagnosis(0.0, low=0.0, high=0.3, tolerance=0.1, costs=Costs()).verdict.name
        'UNCLEAR'
    """

    distance: float
    low: float
    high: float
    tolerance: float
    costs: Costs

    @property
    def verdict(self) -> Verdict:
        """Whether devices are homogeneous enough, as far as the noise lets one see."""
        if self.low > self.tolerance:
            return Verdict.HETEROGENEOUS
        if self.high <= self.tolerance:
            return Verdict.HOMOGENEOUS
        return Verdict.UNCLEAR

    def __str__(self) -> str:
        unclear = self.verdict is Verdict.UNCLEAR
        subject = "The answer" if unclear else "This federation"
        return (
            f"The relative distance is {self.distance:.3g}, between {self.low:.3g} and "
            f"{self.high:.3g} with 95 % confidence (tolerance {self.tolerance:g}). "
            f"{subject} is {self.verdict.value}"
        )


def diagnose(
    problem: BilevelProblem,
    survey: Survey,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int = 20,
    tolerance: float = 0.1,
    seed: int = 0,
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> Diagnosis:
    """Measure, at a point, how far the paper's homogeneity assumption is from true.

    Lemma 1 lets every device use its own inverse Hessian, because all have the same.
    Elsewhere mean(J_k H_k⁻¹ b_k) differs from J̄ H̄⁻¹ b̄, and the paper's algorithms
    follow the former. Both are estimated `rounds` times from fresh samples; devices
    share only Hessian products and hypergradients, and an engine does the work as in a
    run.
    All devices are asked, since a sample of them has an inverse Hessian of its own.
    The answer holds near the point: take y near y*(x), by the survey's warm start or
    from a run, and ask again at the end of the run.

    Args:
        problem: the two losses.
        survey: the series, the batch size and the warm start to use.
        devices: the data.
        x: the point.
        y: the point.
        rounds: how many independent estimates to make, at least 3.
        tolerance: the relative distance that counts as small.
        seed: of the samples.
        weights: of the devices, as given to `run`.
        engine: where the devices' work is done.

    Raises:
        ValueError: if fewer than 3 rounds are asked for.
        ArithmeticError: if an estimate is not finite, the series or the warm start goes
            astray, or the hypergradient vanishes.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel import NeumannSeries
        >>> from fedbilevel.metrics import Survey, diagnose
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean(batch * y**2 / 2 - x * y),
        ... )
        >>> one, four = np.ones(1), np.full(1, 4.0)
        >>> alike = InMemoryDevices([LocalExamples(one, one)] * 2)
        >>> apart = InMemoryDevices([LocalExamples(one, one), LocalExamples(one, four)])
        >>> survey = Survey(NeumannSeries(terms=40, scale=0.2))
        >>> for devices, y in ((alike, 3.0), (apart, 1.2)):
        ...     print(diagnose(problem, survey, devices, 3.0, y).verdict.name)
        HOMOGENEOUS
        HETEROGENEOUS
    """
    if rounds < 3:
        raise ValueError(
            f"diagnose needs at least 3 rounds to see its noise, but rounds={rounds}."
        )
    differences, wholes, indirects = [], [], []
    for done in run(
        problem,
        survey,
        devices,
        x,
        y,
        rounds=rounds,
        seed=seed,
        weights=weights,
        engine=engine,
    ):
        direct, indirect, own = (
            np.asarray(ravel_pytree(part)[0], float)
            for part in (done.server.direct, done.server.indirect, done.server.own)
        )
        differences.append(own - (direct - indirect))
        wholes.append(direct - indirect)
        indirects.append(indirect)
    _require_sane(survey, done.server)
    if not np.isfinite(differences).all():
        raise ArithmeticError(
            "a hypergradient is not finite; lower the scale of the survey's series "
            "below 1 / L_1, where L_1 is the largest curvature of the lower loss."
        )
    grams = [np.inner(rows, rows) for rows in (differences, wholes, indirects)]
    ratio, error = _jackknife([np.asarray(gram) for gram in grams])
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, rounds - 1)) * error
    distance, low, high = (
        sqrt(max(0.0, squared)) for squared in (ratio, ratio - width, ratio + width)
    )
    return Diagnosis(distance, low, high, tolerance, done.costs)


def _require_sane(survey: Survey, seen: SurveyState) -> None:
    # Means of samples of their own: only growth that no noise explains is refused.
    def norm(variable: PyTree) -> float:
        return float(np.linalg.norm(ravel_pytree(variable)[0]))

    before, after = norm(seen.slope_before), norm(seen.slope)
    if survey.warm_start is not None and not after <= 2 * before:
        raise ArithmeticError(
            f"the warm start led away from y*(x): ‖∇y g‖ was {before:.2g} and is "
            f"{after:.2g}; lower its learning rate."
        )
    first, last = norm(seen.right_side), norm(seen.power)
    if not last <= 2 * first:
        raise ArithmeticError(
            "the survey's series diverges; lower its scale below 1 / L_1, where L_1 is "
            "the largest curvature of the lower loss (estimate_assumptions finds it)."
        )


def _jackknife(
    grams: Sequence[Float[np.ndarray, "rounds rounds"]],
) -> tuple[float, float]:
    """Return the squared relative distance and its standard error, round by round."""
    count = len(grams[0])
    everyone = np.arange(count)
    without = [_ratio(grams, np.delete(everyone, i)) for i in everyone]
    variance = (count - 1) * float(np.var(without))
    return _ratio(grams, everyone), sqrt(variance)


def _ratio(
    grams: Sequence[Float[np.ndarray, "rounds rounds"]], rows: Int[np.ndarray, "rows"]
) -> float:
    # Products of different rounds only: a round's own product has its noise in it.
    pairs = len(rows) * (len(rows) - 1)
    difference, whole, indirect = (
        float(gram[np.ix_(rows, rows)].sum() - gram[rows, rows].sum()) / pairs
        for gram in grams
    )
    size = max(whole, indirect)
    if size <= 0:
        raise ArithmeticError(
            "the hypergradient vanishes here, or its noise hides it; give the survey a "
            "warm start or a larger batch_size, or ask at another point."
        )
    return difference / size
