"""A finished round of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from fedbilevel.algorithms.protocol import Private, Server
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import Exclusions, ExclusionSnapshot
from fedbilevel.engines.protocol import Report, RunState
from fedbilevel.engines.spending import Spending
from fedbilevel.mathematics.problem import Lower, Upper


class Round(NamedTuple):
    """A finished round of a run, as `run` and `resume` yield it.

    Most programs read `x` and `y`, the variables after the round, `number`, `costs` and
    `exclusions`.

    Attributes:
        number: round number, counted from 0.
        state: server state and private states after the round, on the engine's
            hardware. Read them through `x`, `y`, `server` and `private`.
        reports: reports of the exchanges of the round, in their order: contacted
            devices, accepted uploads, and means of reported values. Empty if the round
            was read from a checkpoint.
        costs: samples, exchanges and bytes since the start of the run.
        history: metrics of each checkpoint so far, oldest first.
        exclusion_counts: counts of excluded uploads, by device; read `exclusions`.
        spending: privacy that the run spends; read `epsilon`.
        repeated_means: number of exchanges with noise that were computed again after a
            resume.
        is_last: True if the run ends with this round.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import Costs
        >>> from fedbilevel.algorithms.momentum import initial_state
        >>> state = RunState(initial_state(x=jnp.ones(1), y=jnp.ones(2)), private=())
        >>> last = Round(number=9, state=state, reports=(), costs=Costs(exchanges=10))
        >>> last.number, last.costs.exchanges, last.y.shape
        (9, 10, (2,))
    """

    number: int
    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    history: tuple[Mapping[str, float | int], ...] = ()
    exclusion_counts: ExclusionSnapshot | None = None
    spending: Spending | None = None
    repeated_means: int = 0
    is_last: bool = False

    @property
    def epsilon(self) -> float | None:
        """The ε that all rounds so far have spent; None without noise.

        It is valid for x and y of all rounds together, at the δ of the noise. With
        `ExampleNoise` it is valid for all uploads, by example; otherwise by device.
        """
        if self.spending is None:
            return None
        return self.spending.epsilon_after(self.number + 1, self.repeated_means)

    @property
    def participants(self) -> Int[np.ndarray, "contributors"]:
        """Device numbers whose uploads the server averaged in the last exchange.

        Empty if the round was read from a checkpoint.
        """
        if not self.reports:
            return np.array([], int)
        return self.reports[-1].contributors

    @property
    def exclusions(self) -> Exclusions:
        """Numbers of exclusions since the start of the run, by device.

        Uploads are inspected two rounds later, so the latest two rounds may be missing
        during a run. The counts are complete after the last round and at a checkpoint.
        Later rounds do not change this object.
        """
        if self.exclusion_counts is None:
            return Exclusions()
        return self.exclusion_counts.summary(self.number + 1)

    @property
    def server(self) -> Server:
        """The server state after the round."""
        return _local(self.state.server)

    @property
    def private(self) -> Private:
        """The private states, stacked by device number; () if devices keep no state.

        Read them before the next round, which overwrites them. On a mesh they remain
        sharded, and the last rows may be padding.
        """
        return self.state.private

    @property
    def x(self) -> Upper:
        """The upper variable after the round."""
        return _local(self.state.server.x)

    @property
    def y(self) -> Lower:
        """The lower variable after the round."""
        return _local(self.state.server.y)


def _local(tree: PyTree) -> PyTree:
    """Return replicated arrays as arrays of this process alone.

    Computations on them then need no other process.
    """

    def local(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        if len(leaf.sharding.device_set) == 1:
            return leaf
        return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf

    return jax.tree.map(local, tree)
