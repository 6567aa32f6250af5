"""Find the cause of a bad outcome: a step size too large at the best point."""

import logging
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple

import jax

from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.run import Run
from fedbilevel.engines.sharded.engine import Sharded
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.instability import find_instabilities
from fedbilevel.metrics.losses import LOSS
from fedbilevel.metrics.untried_steps import untried_steps
from fedbilevel.plurals import count_noun
from fedbilevel.tracking.records import Record
from fedbilevel.transforms.transformed import noise_of

logger = logging.getLogger("fedbilevel")
SECONDS = 60.0
"""Time limit of the search for a cause."""
FEWEST, MOST = 30, 100
"""Limits of the rounds of a trial run: the rounds since the best point, clipped."""


class Best(NamedTuple):
    """The evaluated point of a run with the lowest upper loss.

    Attributes:
        loss: upper loss at the point.
        rounds: number of rounds before the point.
        step: number of local steps before the point.
        x: upper variable.
        y: lower variable.
    """

    loss: float
    rounds: int
    step: int
    x: Upper
    y: Lower


def better(best: Best, record: Record, step: Any, x: Upper, y: Lower) -> Best:
    """Return the better of the best point so far and a new point.

    Example:
        >>> from fedbilevel import Costs
        >>> record = Record(1, 0.1, Costs(), {"loss": float("nan")})
        >>> better(Best(0.5, 0, 0, 3.0, 0.0), record, 5, 2.0, 1.0).rounds
        0
    """
    loss = record.metrics.get(LOSS.name, inf)
    if not isfinite(loss) or loss >= best.loss:
        return best
    return Best(loss, record.rounds, int(step), x, y)


def cause_of(run: Run, best: Best) -> str | None:
    """Return a sentence about the steps that were too large in a run that ended badly.

    None if the cause cannot be searched: the data are at sites, several processes share
    the run, or the run is differentially private. If the search reaches its time limit,
    the sentence reports that.

    Args:
        run: the run, with the number of rounds since the point.
        best: point at which steps are tried.
    """
    engine = run.engine
    if not isinstance(engine, Simulation | Sharded | DebugSimulation):
        return None
    if jax.process_count() > 1:
        return None
    # A search uses the data, and its sentence would publish what it found.
    if noise_of(run.algorithm) is not None:
        return None
    logger.warning(
        "The run ended badly; searching for a step that was too large, for at most "
        "%.0f seconds.",
        SECONDS,
    )
    rounds = count_noun(best.rounds, "round")
    point = f"the best point, after {rounds}" if best.rounds else "the start"
    try:
        instabilities = find_instabilities(
            # Trials must continue past NaN, at which the debug engine stops.
            replace(run, engine=Simulation())
            if isinstance(engine, DebugSimulation)
            else run,
            best.x,
            best.y,
            step=best.step,
            rounds=max(FEWEST, min(MOST, run.rounds)),
            seconds=SECONDS,
        )
    except TimeoutError:
        return (
            f"At {point}, the search for a step that was too large ended after "
            f"{SECONDS:.0f} seconds without a result; call "
            "fedbilevel.metrics.find_instabilities with more seconds to continue it."
        )
    except ValueError as error:
        # A trial starts like a run, which raises an error if a loss is not finite.
        return f"At {point}, no step could be tried: {error}"
    if not instabilities:
        untried = ", ".join(untried_steps(run.algorithm))
        except_for = f" of those tried; not tried: {untried}" if untried else ""
        return (
            f"At {point}, no step was too large{except_for}. A larger batch_size "
            "lowers the noise; fedbilevel diagnose reports whether the devices are "
            "homogeneous enough for the algorithm."
        )
    return f"At {point}, {'; and '.join(map(str, instabilities))}."
