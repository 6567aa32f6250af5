"""Short trial runs from a point, to test whether a variable diverges."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.optional import with_draws_of
from fedbilevel.engines.inspection import NoUploadsError, logger
from fedbilevel.engines.run import Run
from fedbilevel.mathematics.problem import Lower, Upper

GROWTH = 3.0
"""A variable is unstable if this factor lies between its longest early and late moves.

A variable that accelerates steadily reaches 1.5; one that grows by 6 % in each round
reaches 3 in 60 rounds."""
BLOWN_UP = 1e9
"""A trial ends if a move exceeds the first by this factor."""
FIXED = 1e-30
"""A rate that keeps a variable fixed: of the rates, only `upper_rate` may be zero."""


class Trial(NamedTuple):
    """The result of a trial run.

    Attributes:
        x: upper variable at the end.
        y: lower variable at the end.
        rounds: number of finished rounds.
        complete: False if the time limit ended the trial. A trial that ended early
            because the variable or all uploads diverged is complete.
        stable: True if the trial is complete and the observed variable settled.
        excluded: number of a device whose upload was excluded, or None.
    """

    x: Upper
    y: Lower
    rounds: int
    complete: bool
    stable: bool
    excluded: int | None


@dataclass(frozen=True)
class Trials:
    """Trial runs from one point, all with the same samples.

    Attributes:
        template: run of a trial, except its algorithm.
        until: end of the time limit, by `time.monotonic`.
    """

    template: Run
    until: float

    @property
    def time_is_up(self) -> bool:
        """True if there is no time for another round."""
        return time.monotonic() > self.until

    def run(self, algorithm: Any, variable: str) -> Trial:
        """Run an algorithm and observe a variable of the server state."""
        moves: list[float] = []
        size, excluded, before = 0.0, None, None
        drawn = with_draws_of(self.template.algorithm, algorithm)
        run = replace(self.template, algorithm=drawn)
        x, y, number = run.x, run.y, 0
        if self.time_is_up:  # The first round takes longest, because it compiles.
            return Trial(x, y, 0, complete=False, stable=False, excluded=None)
        complete = False
        with _silence(), np.errstate(over="ignore"):
            try:
                for result in run:
                    x, y, number = result.x, result.y, result.number + 1
                    value = _flat(getattr(result.server, variable))
                    if before is not None:
                        moves.append(float(np.linalg.norm(value - before)))
                    before, size = value, max(size, float(np.linalg.norm(value)))
                    counts = result.exclusions.devices
                    excluded = counts[0].device if counts else None
                    blown_up = moves and not moves[-1] <= BLOWN_UP * (moves[0] + 1e-30)
                    complete = bool(blown_up) or number == run.rounds
                    if complete or self.time_is_up:
                        break
            except NoUploadsError:
                moves.append(inf)
                complete = True
        leaves = map(jnp.asarray, jax.tree.leaves((x, y)))
        precision = max(
            float(jnp.finfo(leaf.dtype).eps)  # type: ignore[no-untyped-call]
            for leaf in leaves
        )
        grows = _grows(moves, 100 * precision * size)
        stable = complete and excluded is None and not grows
        return Trial(x, y, number, complete, stable, excluded)


def _grows(moves: list[float], rounding: float) -> bool:
    if not all(map(isfinite, moves)):
        return True
    early = len(moves) * 2 // 3
    if not early:
        return False
    return max(moves[early:]) > GROWTH * max(max(moves[:early]), rounding)


def _flat(variable: PyTree) -> np.ndarray:
    leaves = [np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(variable)]
    return np.concatenate(leaves)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress warnings of excluded uploads, which a trial expects."""
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
