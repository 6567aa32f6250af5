"""Notices: events of a run that a server state counts and the log reports."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Int

from fedbilevel.algorithms.protocol import Server


@runtime_checkable
class Noticing(Protocol):
    """A server state that counts events of which a user should know.

    The property is optional. Engines log a message each time its number has grown, with
    the number of the round.
    """

    @property
    def notices(self) -> Mapping[str, Int[Array, ""]]:
        """The number of events so far, by the message that the log prints."""


def notices_of(server: Server) -> Mapping[str, Any]:
    """Return the notices of a server state; none if it counts no events.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import AutoFedBiO, BilevelProblem
        >>> loss = lambda x, y, batch: y**2
        >>> problem = BilevelProblem(loss, loss)
        >>> state, _ = AutoFedBiO(rounds=9).init(problem, jnp.ones(()), jnp.ones(()))
        >>> [int(number) for number in notices_of(state).values()]
        [0, 0]
    """
    return server.notices if isinstance(server, Noticing) else {}
