"""Is a federation homogeneous enough for methods that use own hypergradients?"""

from enum import Enum
from math import sqrt
from typing import NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedbilevel.algorithms.survey import Survey
from fedbilevel.data.devices import Devices
from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.participation import Everyone, Participation
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.rounds import run
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

NOISE_MULTIPLE = 3.0
"""A distance counts as seen when it exceeds so many times its sampling noise."""


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
        distance: ‖mean own − global‖ / ‖global‖, freed of its sampling noise.
        noise: the sampling noise of that distance: one standard error.
        tolerance: what distance was to count as small.
        costs: what the survey has spent.

    Example:
        >>> Diagnosis(0.5, noise=0.01, tolerance=0.1, costs=Costs()).verdict.name
        'HETEROGENEOUS'
        >>> Diagnosis(0.02, noise=0.01, tolerance=0.1, costs=Costs()).verdict.name
        'HOMOGENEOUS'
        >>> Diagnosis(0.3, noise=0.4, tolerance=0.1, costs=Costs()).verdict.name
        'UNCLEAR'
    """

    distance: float
    noise: float
    tolerance: float
    costs: Costs

    @property
    def verdict(self) -> Verdict:
        """Whether devices are homogeneous enough, as far as the noise lets one see."""
        margin = NOISE_MULTIPLE * self.noise
        if self.distance - margin > self.tolerance:
            return Verdict.HETEROGENEOUS
        # An upper limit alone decides the other way: absence of evidence does not.
        if self.distance + margin <= self.tolerance or (
            self.distance <= self.tolerance and margin <= self.tolerance
        ):
            return Verdict.HOMOGENEOUS
        return Verdict.UNCLEAR

    def __str__(self) -> str:
        return (
            f"The relative distance is {self.distance:.3g} ± {self.noise:.2g} "
            f"(tolerance {self.tolerance:g}). This federation is {self.verdict.value}"
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
    participation: Participation = Everyone(),
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> Diagnosis:
    """Measure, at a point, how far the paper's homogeneity assumption is from true.

    Lemma 1 lets every device use its own inverse Hessian, because all have the same.
    Elsewhere mean(J_k H_k⁻¹ b_k) differs from J̄ H̄⁻¹ b̄, and the paper's algorithms
    follow the former. Both are estimated `rounds` times from fresh samples; devices
    share only Hessian products and hypergradients, and an engine does the work as in a
    run.
    The answer holds near the point: take y near y*(x), by the survey's warm start or
    from a run, and ask again at the end of the run.

    Args:
        problem: the two losses.
        survey: the series, the batch size and the warm start to use.
        devices: the data.
        x: the point.
        y: the point.
        rounds: how many independent estimates to make, at least 2.
        tolerance: the relative distance that counts as small.
        seed: of the samples.
        participation: who is asked in a round.
        weights: of the devices, as given to `run`.
        engine: where the devices' work is done.

    Raises:
        ValueError: if fewer than 2 rounds are asked for.
        ArithmeticError: if an estimate is not finite.

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
    if rounds < 2:
        raise ValueError(
            f"diagnose needs at least 2 rounds to see its noise, but rounds={rounds}."
        )
    differences, hypergradients = [], []
    for done in run(
        problem,
        survey,
        devices,
        x,
        y,
        rounds=rounds,
        seed=seed,
        participation=participation,
        weights=weights,
        engine=engine,
    ):
        server = jax.tree.map(np.asarray, done.server)
        whole = np.asarray(ravel_pytree(server.hypergradient)[0], float)
        differences.append(np.asarray(ravel_pytree(server.own)[0], float) - whole)
        hypergradients.append(whole)
    if not np.isfinite(differences).all():
        raise ArithmeticError(
            "a hypergradient is not finite; lower the scale of the survey's series "
            "below 1 / L_1, where L_1 is the largest curvature of the lower loss."
        )
    # The mean's squared norm exceeds the truth's by the variance of the mean.
    variance = float(np.sum(np.var(differences, axis=0, ddof=1)) / rounds)
    squared = float(np.sum(np.mean(differences, axis=0) ** 2))
    scale = float(np.linalg.norm(np.mean(hypergradients, axis=0)))
    return Diagnosis(
        distance=sqrt(max(0.0, squared - variance)) / scale,
        noise=sqrt(variance) / scale,
        tolerance=tolerance,
        costs=done.costs,
    )
