"""Short trial runs from a point: does a variable's movement grow or settle?"""

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

from fedbilevel.engines.preparation import RunSpec
from fedbilevel.engines.run import rounds_of
from fedbilevel.engines.screening import NoUploadsError, logger
from fedbilevel.mathematics.problem import Lower, Upper

GROWTH = 3.0
"""A variable is unstable if its longest late move is so many times its longest early.

A variable that gathers speed steadily reaches 1.5; one that grows by 6 % a round
reaches 3 in 60 rounds."""
BLOWN_UP = 1e9
"""A move so many times the first one ends a trial."""
FIXED = 1e-30
"""A rate that holds a variable fixed: of the rates, only `upper_rate` may be zero."""


class Trial(NamedTuple):
    """How a trial run went.

    Attributes:
        x: the upper variable at its end.
        y: the lower variable at its end.
        rounds: that were made.
        complete: whether it was not cut short by the time limit: it made all of its
            rounds, or ended early because the variable or all uploads blew up.
        stable: whether the variable looked at settled down; never of a trial that is
            not complete.
        excluded: a device whose upload was excluded, if there was one.

    Example:
        >>> Trial(1.0, 2.0, 60, complete=True, stable=True, excluded=None).stable
        True
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
        spec: of a trial, whose algorithm is another in each.
        until: the time, by `time.monotonic`, after which trials are cut short.

    Example:
        >>> Trials.__name__
        'Trials'
    """

    spec: RunSpec
    until: float

    @property
    def time_is_up(self) -> bool:
        """Whether there is no time for another round."""
        return time.monotonic() > self.until

    def run(self, algorithm: Any, variable: str) -> Trial:
        """Run an algorithm; watch a variable of the server's state."""
        moves: list[float] = []
        size, excluded, before = 0.0, None, None
        spec = self.spec._replace(algorithm=algorithm)
        x, y, number = spec.x, spec.y, 0
        if self.time_is_up:  # the first round is the longest: it compiles
            return Trial(x, y, 0, complete=False, stable=False, excluded=None)
        complete = False
        with _silence(), np.errstate(over="ignore"):
            try:
                for done in rounds_of(spec):
                    x, y, number = done.x, done.y, done.number + 1
                    now = _flat(getattr(done.server, variable))
                    if before is not None:
                        moves.append(float(np.linalg.norm(now - before)))
                    before, size = now, max(size, float(np.linalg.norm(now)))
                    named = done.exclusions.devices
                    excluded = named[0].device if named else None
                    blown_up = moves and not moves[-1] <= BLOWN_UP * (moves[0] + 1e-30)
                    complete = bool(blown_up) or number == spec.rounds
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


def changed(algorithm: Any, **settings: Any) -> Any:
    """Return an algorithm with those of the settings that it has.

    Example:
        >>> from fedbilevel import FedBiO
        >>> fixed = changed(FedBiO(0.1), upper_rate=FIXED, server_rate=FIXED)
        >>> fixed.upper_rate, hasattr(fixed, "server_rate")
        (1e-30, False)
    """
    known = {name: one for name, one in settings.items() if hasattr(algorithm, name)}
    return replace(algorithm, **known)


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
    """Keep quiet about uploads that a trial excludes: they are what it is for."""
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
