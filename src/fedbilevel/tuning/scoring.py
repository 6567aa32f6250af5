"""Settings run and scored: many in one compiled program where memory allows."""

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Protocol, runtime_checkable

import jax

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.engines.final_points import Points, bytes_of_run, final_points
from fedbilevel.engines.limits import NO_LIMITS
from fedbilevel.engines.preparation import RunSpec
from fedbilevel.engines.run import rounds_of
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.memory import memory_limit
from fedbilevel.metrics.full_data import full_data, full_data_problem
from fedbilevel.tuning.divergence import divergence_check

BLOCK = 4096
"""Examples whose loss is evaluated at once."""
MEMORY = 0.25
"""The part of the memory limit that runs side by side may take."""


@runtime_checkable
class Score(Protocol):
    """Judges the point at which a run ended; lower is better."""

    def __call__(self, x: Upper, y: Lower, /) -> float:
        """Return the score of (x, y)."""


def upper_loss_of(spec: RunSpec) -> Score:
    """Return the upper loss on all upper examples of all devices, as a score.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - batch) ** 2)
        >>> rows = LocalExamples(np.array([1.0, 3.0]), np.ones(1))
        >>> devices = InMemoryDevices.sharing(rows, 2)
        >>> problem = BilevelProblem(loss, loss)
        >>> spec = RunSpec(problem, FedBiO(1.0), devices, 0.0, 0.0)
        >>> upper_loss_of(spec)(0.0, 2.0)
        1.0
    """
    upper, _ = full_data(spec.devices, spec.weights, BLOCK)
    loss = jax.jit(full_data_problem(spec.problem).upper_loss)
    return lambda x, y: float(loss(x, y, upper))


def runs_side_by_side(spec: RunSpec, most: int) -> int:
    """Return how many runs one program makes at once; 0 if memory is short for one.

    It depends on the whole memory of the machine or container, not on what is free: the
    same machine gives the same number, and so the same rounding.

    Args:
        spec: what is run.
        most: how many are wanted.

    Example:
        >>> runs_side_by_side.__name__
        'runs_side_by_side'
    """
    one, data = bytes_of_run(spec)
    budget = MEMORY * memory_limit()
    return max(0, min(most, int((budget - data) // max(1, one))))


class Scorer:
    """Runs settings and scores the points at which they end.

    Example:
        >>> Scorer.__name__
        'Scorer'
    """

    def __init__(self, spec: RunSpec, score: Score, width: int) -> None:
        """Prepare to run settings.

        Args:
            spec: what is run, with one of the settings, which all others differ from
                in numbers only, and the rounds of a full run.
            score: of the point at which a run ends.
            width: runs that one program makes at once; 0 to make one after another on
                the engine.
        """
        self.width = width
        self._spec, self._score = spec, score
        self._diverged = divergence_check(
            spec.problem, spec.devices, spec.x, spec.y, spec.weights
        )
        self._run_to_end: Callable[..., Points] | None = None
        if width:
            every_upload = spec.limits == NO_LIMITS
            self._run_to_end = final_points(spec, every_upload)

    def __call__(
        self, runs: Sequence[tuple[FederatedAlgorithm, int]], rounds: int
    ) -> list[float]:
        """Return the score of each run, a setting with a seed; inf if it diverged.

        A run has diverged if its score is not finite, or a loss is not or is far above
        its reference (`divergence_check`): a score may be bounded, and best where y is
        1e19. An upload that is not finite is a divergence too, though a run excludes it
        and goes on: with the best setting of a search, five of eight devices were
        excluded in the first round. Where there are `limits`, exclusions are
        wanted.

        Args:
            runs: as many as the width at most, or any number if that is 0.
            rounds: of each.
        """
        if self._run_to_end is None:
            return [self._one(*run, rounds) for run in runs]
        # Other numbers of runs would be other programs.
        filled = [*runs, *[runs[-1]] * (self.width - len(runs))]
        points = self._run_to_end(filled, rounds)
        return [self._scored(*points.of(place)) for place in range(len(runs))]

    def _one(self, algorithm: FederatedAlgorithm, seed: int, rounds: int) -> float:
        spec = self._spec._replace(algorithm=algorithm, seed=seed, rounds=rounds)
        try:
            *_, last = rounds_of(spec)
        except ArithmeticError:
            return inf
        if last.exclusions.excluded and spec.limits == NO_LIMITS:
            return inf
        return self._scored(last.x, last.y)

    def _scored(self, x: Upper, y: Lower) -> float:
        try:
            found = float(self._score(x, y))
        except ArithmeticError:
            return inf
        return found if isfinite(found) and not self._diverged(x, y) else inf
