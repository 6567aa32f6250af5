"""What a run yields: a finished round."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import Private, Server
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import Exclusions, ExclusionSnapshot
from fedbilevel.engines.protocol import Report, RunState
from fedbilevel.mathematics.problem import Lower, Upper


class Round(NamedTuple):
    """A finished round.

    Attributes:
        number: counted from 0.
        state: all that the next round begins with, where the engine has it.
        reports: what each of its exchanges told.
        costs: all that has been spent since the run began.
        history: what was measured at each checkpoint so far.
        exclusion_counts: how often devices were excluded; see `exclusions`.

    Example:
        >>> from fedbilevel import Costs
        >>> from fedbilevel.algorithms.momentum import initial_state
        >>> import jax.numpy as jnp
        >>> server = initial_state(jnp.ones(1), jnp.ones(2))
        >>> Round(0, RunState(server, private=()), (), Costs()).y
        Array([1., 1.], dtype=float32)
    """

    number: int
    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    history: tuple[Mapping[str, float | int], ...] = ()
    exclusion_counts: ExclusionSnapshot | None = None

    @property
    def participants(self) -> Int[np.ndarray, "contributors"]:
        """The devices whose uploads counted in the round's last exchange.

        None are known of a round that was read from a checkpoint.
        """
        if not self.reports:
            return np.array([], int)
        return self.reports[-1].contributors

    @property
    def exclusions(self) -> Exclusions:
        """How often devices were excluded since the run began.

        Uploads are looked at two rounds later, so the latest two rounds may be missing
        while a run goes on. After the last round, and at a checkpoint, none is. Later
        rounds do not change it.
        """
        if self.exclusion_counts is None:
            return Exclusions()
        return self.exclusion_counts.summary(self.number + 1)

    @property
    def server(self) -> Server:
        """The server's state after the round."""
        return _local(self.state.server)

    @property
    def private(self) -> Private:
        """What each device keeps, by device number; nothing if devices keep nothing.

        Read it before the next round is asked for, which writes over it. On a mesh it
        stays where it is: split among the shards, and filled up with rows of none.
        """
        return self.state.private

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return _local(self.state.server.x)

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return _local(self.state.server.y)


def _local(tree: PyTree) -> PyTree:
    """Return arrays that are the same everywhere as arrays of this process alone.

    What is computed from them then needs no other process.
    """

    def own(leaf: Array) -> Array:
        if isinstance(leaf, jax.core.Tracer) or len(leaf.sharding.device_set) == 1:
            return leaf
        return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf

    return jax.tree.map(own, tree)
