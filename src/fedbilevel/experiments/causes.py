"""The cause of a bad outcome: which step was too large, found at the best point."""

import logging
from math import inf, isfinite
from typing import Any, NamedTuple

import jax

from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.preparation import RunSpec
from fedbilevel.engines.sharded.engine import Sharded
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.run_directory.failures import LOSS
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.instability import find_instabilities
from fedbilevel.tracking.records import Record

logger = logging.getLogger("fedbilevel")
SECONDS = 60.0
"""That the search for a cause may take."""
FEWEST, MOST = 30, 100
"""Rounds of a trial run: as many as the run has made since its best point, between."""


class Best(NamedTuple):
    """The best point that a run has seen, by its upper loss.

    Attributes:
        loss: at the point.
        rounds: how many were done by then.
        step: how many local steps were done by then.
        x: the point.
        y: the point.

    Example:
        >>> start = Best(inf, 0, 0, 3.0, 0.0)
        >>> from fedbilevel import Costs
        >>> better(start, Record(1, 0.1, Costs(), {"loss": 0.5}), 5, 2.0, 1.0).step
        5
    """

    loss: float
    rounds: int
    step: int
    x: Upper
    y: Lower


def better(best: Best, record: Record, step: Any, x: Upper, y: Lower) -> Best:
    """Return the better of the best point so far and another.

    Example:
        >>> from fedbilevel import Costs
        >>> record = Record(1, 0.1, Costs(), {"loss": float("nan")})
        >>> better(Best(0.5, 0, 0, 3.0, 0.0), record, 5, 2.0, 1.0).rounds
        0
    """
    loss = record.figures.get(LOSS, inf)
    if not isfinite(loss) or loss >= best.loss:
        return best
    return Best(loss, record.rounds, int(step), x, y)


def cause_of(spec: RunSpec, best: Best) -> str | None:
    """Return which steps of a run that ended badly were too large.

    None where that cannot be found out: the data are at sites, or several processes
    share the run. If the time for the search is used up without an answer, the
    sentence says so.

    Args:
        spec: of the run, with the rounds that were done since the point.
        best: the point to look at.

    Example:
        >>> cause_of.__name__
        'cause_of'
    """
    engine = spec.engine
    if not isinstance(engine, Simulation | Sharded | DebugSimulation):
        return None
    if jax.process_count() > 1:
        return None
    logger.warning(
        "the run ended badly; looking for a step that was too large, for at most "
        "%.0f seconds",
        SECONDS,
    )
    where = (
        f"the best point, after {best.rounds} rounds" if best.rounds else "the start"
    )
    try:
        found = find_instabilities(
            spec.problem,
            spec.algorithm,
            spec.devices,
            best.x,
            best.y,
            step=best.step,
            rounds=max(FEWEST, min(MOST, spec.rounds)),
            seconds=SECONDS,
            seed=spec.seed,
            participation=spec.participation,
            weights=spec.weights,
            # Trials are to reach what is not finite, at which the debug engine stops.
            engine=Simulation() if isinstance(engine, DebugSimulation) else engine,
            limits=spec.limits,
        )
    except TimeoutError:
        return (
            f"At {where}, the search for a step that was too large ended after "
            f"{SECONDS:.0f} seconds without an answer; "
            "fedbilevel.metrics.find_instabilities searches longer if it is given more "
            "seconds."
        )
    except ValueError as error:
        # A trial begins like a run, which refuses losses that are not finite.
        return f"At {where}, no step could be tried: {error}"
    if not found:
        return (
            f"At {where}, no step was found to be too large: a larger batch_size "
            "lowers the noise, and fedbilevel diagnose tells whether the devices are "
            "homogeneous enough for the algorithm."
        )
    return f"At {where}, {'; and '.join(map(str, found))}."
