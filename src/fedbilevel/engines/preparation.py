"""A prepared run, and the parts of it that other modules need."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import Phase
from fedbilevel.engines.participation import Participation
from fedbilevel.engines.protocol import (
    Engine,
    Job,
    Participants,
    PhaseReference,
    RunState,
)
from fedbilevel.engines.spending import Spending
from fedbilevel.mathematics.arrays import on_host


class Prepared(NamedTuple):
    """A run that has not started.

    Attributes:
        job: constant inputs of the engine.
        state: state before the first exchange.
        weights: weights of all devices.
        engine: engine that executes the devices' work.
        rounds: number of rounds.
        participation: function that selects the devices of each round.
        participation_seed: seed from which the participants of all rounds follow.
        spending: privacy that the run spends; None without noise.
    """

    job: Job
    state: RunState
    weights: Float[np.ndarray, "devices"]
    engine: Engine
    rounds: int
    participation: Participation
    participation_seed: int
    spending: Spending | None = None


def participants_of(
    number: int,
    chosen: Int[np.ndarray, "chosen"],
    weights: Float[np.ndarray, "devices"],
) -> Participants:
    """Return the selected devices of a round with their shares of the weight.

    Example:
        >>> import numpy as np
        >>> participants_of(0, np.array([0, 2]), np.array([1.0, 5.0, 3.0])).weights
        array([0.25, 0.75])
    """
    if not len(chosen):
        raise ValueError(
            f"participation returned no device for round {number}. Return at least "
            "one device number."
        )
    if not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(
            f"participation returned an array of {chosen.dtype} for round {number}. "
            "Return device numbers, which are integers."
        )
    wrong = chosen[(chosen < 0) | (chosen >= len(weights))]
    if len(wrong):
        raise ValueError(
            f"participation returned device {wrong[0]} for round {number}. Return "
            f"numbers from 0 to {len(weights) - 1}."
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError(
            f"participation returned a device twice for round {number}. Return each "
            "device at most once."
        )
    total = weights[chosen].sum()
    if not total:
        raise ValueError(
            f"All devices selected for round {number} have weight 0. Select more "
            "devices in each round, or set weights above 0 for more devices."
        )
    return Participants(chosen, weights[chosen] / total)


def references(opening: bool, phases: tuple[Phase, ...]) -> tuple[PhaseReference, ...]:
    """Return references to phases: a repeated phase refers to its first position.

    A repeated phase is one object, and is compiled once.

    Raises:
        ValueError: if two phases have the same name and are not one object.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: (y - x) ** 2
        >>> phases = WarmStart(0.1, exchanges=3).phases(BilevelProblem(loss, loss))
        >>> [reference.index for reference in references(True, phases)]
        [0, 0, 0]
    """
    first: dict[int, int] = {}
    names: dict[str, Phase] = {}
    for index, phase in enumerate(phases):
        first.setdefault(id(phase), index)
        # Two objects may differ in what their functions refer to, which is not visible.
        if names.setdefault(phase.name, phase) is not phase:
            raise ValueError(
                f"Two phases of a round have the name {phase.name!r}. Rename one of "
                "them if they differ. To repeat a phase, return one object several "
                "times, such as (phase,) * 3; a wrapper of phases keeps repetitions "
                "with map_phases of fedbilevel.algorithms."
            )
    return tuple(PhaseReference(opening, first[id(phase)]) for phase in phases)


def canonical(state: PyTree) -> PyTree:
    """Return the state with strongly typed leaves.

    Example:
        >>> canonical(1.0).weak_type
        False
    """

    # A weakly typed leaf becomes strongly typed after one call, which recompiles.
    def strong(leaf: Any) -> Array:
        leaf = on_host(leaf)
        return jnp.array(leaf, jnp.result_type(leaf))

    return jax.tree.map(strong, state)
