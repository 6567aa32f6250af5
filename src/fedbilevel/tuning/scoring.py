"""Scores of settings: many runs in one compiled program, if memory allows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Protocol, runtime_checkable

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.engines.final_points import Points, bytes_of_run, final_points
from fedbilevel.engines.limits import NO_LIMITS
from fedbilevel.engines.run import Run
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.memory import memory_limit
from fedbilevel.metrics.metric import FullProblem
from fedbilevel.tuning.divergence import divergence_check

MEMORY = 0.25
"""The fraction of the memory limit that runs in one program may use."""


@runtime_checkable
class Score(Protocol):
    """A score of the last x and y of a run; lower is better."""

    def __call__(self, x: Upper, y: Lower, /) -> float:
        """Return the score of (x, y)."""


def upper_loss_of(run: Run) -> Score:
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
        >>> run = Run(problem, FedBiO(1.0), devices, 0.0, 0.0, rounds=1)
        >>> upper_loss_of(run)(0.0, 2.0)
        1.0
    """
    return FullProblem(run.problem, run.devices, run.weights).upper_loss


def runs_side_by_side(run: Run, most: int) -> int:
    """Return the number of runs of one program; 0 if memory is too small for one.

    It depends on the total memory of the machine or container, not on free memory: the
    same machine gives the same number, and so the same rounding.

    Args:
        run: run of any of the settings.
        most: largest number of runs.
    """
    size, data = bytes_of_run(run)
    budget = MEMORY * memory_limit()
    return max(0, min(most, int((budget - data) // max(1, size))))


class Scorer:
    """A function that runs settings and scores the last x and y of each run."""

    def __init__(self, run: Run, score: Score, width: int) -> None:
        """Prepare the runs.

        Args:
            run: full run with one of the settings, from which all others differ in
                numbers only.
            score: score of the last x and y of a run.
            width: number of runs of one program; 0 to run each on the engine.
        """
        self.width = width
        self._full, self._score = run, score
        self._diverged = divergence_check(
            run.problem, run.devices, run.x, run.y, run.weights
        )
        self._run_to_end: Callable[..., Points] | None = None
        if width:
            every_upload = run.limits == NO_LIMITS
            self._run_to_end = final_points(run, every_upload)

    def __call__(
        self, runs: Sequence[tuple[FederatedAlgorithm, int]], rounds: int
    ) -> list[float]:
        """Return the score of each run; inf if it diverged.

        A run has diverged if its score is not finite, or if a loss is not finite or far
        above its reference (`divergence_check`): a score may be bounded, and best at
        y = 1e19. An upload that is not finite is a divergence too, although a run
        excludes it and continues: with the best setting of a search, five of eight
        devices were excluded in the first round. With `limits`, exclusions are
        intended.

        Args:
            runs: pairs of a setting and a seed, at most `width`, or any number if that
                is 0.
            rounds: number of rounds of each run.
        """
        if self._run_to_end is None:
            return [self._run(*run, rounds) for run in runs]
        # Another number of runs would need another compilation.
        padded = [*runs, *[runs[-1]] * (self.width - len(runs))]
        points = self._run_to_end(padded, rounds)
        return [self._finite_score(*points.of(index)) for index in range(len(runs))]

    def _run(self, algorithm: FederatedAlgorithm, seed: int, rounds: int) -> float:
        run = replace(self._full, algorithm=algorithm, seed=seed, rounds=rounds)
        try:
            *_, last = run
        except ArithmeticError:
            return inf
        if last.exclusions.excluded and run.limits == NO_LIMITS:
            return inf
        return self._finite_score(last.x, last.y)

    def _finite_score(self, x: Upper, y: Lower) -> float:
        try:
            score = float(self._score(x, y))
        except ArithmeticError:
            return inf
        return score if isfinite(score) and not self._diverged(x, y) else inf
