"""A server optimiser: update x by an optax optimiser, with any algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
from jaxtyping import PyTree

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.optional import Conflict, MovedByServer, conflict_of
from fedbilevel.algorithms.protocol import (
    Downlink,
    FederatedAlgorithm,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.algorithms.wrapper import find_layer, map_phases
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import arrays, tree
from fedbilevel.mathematics.optax_optimiser import as_tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Role, register


class OptimisedState(NamedTuple):
    """The states of the inner algorithm and of the optimiser.

    Attributes:
        inner: state of the inner algorithm.
        optimiser: state of the optimiser, such as Adam's two moments of x.
    """

    inner: Server
    optimiser: PyTree

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return self.inner.x

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return self.inner.y

    @property
    def notices(self) -> Mapping[str, Any]:
        """The notices of the inner state."""
        return notices_of(self.inner)

    @property
    def step(self) -> Any:
        """The number of local steps so far, if the inner algorithm counts them."""
        return self.inner.step


@register
@dataclass(frozen=True)
class WithServerOptimiser:
    """An algorithm with an optimiser on the server for x.

    Devices work as without it. The optimiser uses the step x − x̄ of the algorithm as a
    gradient. The algorithm averages y and all other variables as before. With
    `optax.sgd(1.0)`, x becomes x̄: the algorithm is unchanged.

    An optimiser such as Adam divides each coordinate of the step by its usual size, so
    one rate works for problems and coordinates whose hypergradients differ by orders of
    magnitude.

    Attributes:
        algorithm: the inner algorithm.
        server_optimiser: optimiser of x; create it with `optax_optimiser` for runs that
            are compared, saved to a file or resumed.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, Adaptive
        Federated Optimization, arXiv 2003.00295.
    """

    algorithm: Annotated[Any, Role.SAME_STEPS]
    server_optimiser: Annotated[Any, Role.OPTIMISER]

    def __post_init__(self) -> None:
        conflict = conflict_of(self.algorithm, Conflict.SERVER_OPTIMISER)
        if conflict is not None:
            raise ValueError(f"with_server_optimiser: {conflict}")
        object.__setattr__(self, "server_optimiser", as_tree(self.server_optimiser))

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[OptimisedState, Private]:
        """Return the initial states of the inner algorithm and of the optimiser."""
        inner, private = self.algorithm.init(problem, x, y)
        # Variance reduction evaluates samples at the old and the new x, so its state
        # must have the x before the step of the optimiser.
        moved = find_layer(self.algorithm, MovedByServer)
        inner = inner if moved is None else moved.moved_by_server(inner)
        return OptimisedState(inner, self.server_optimiser.init(inner.x)), private

    def moved_by_server(self, state: OptimisedState) -> OptimisedState:
        """Return the state of an inner optimiser, which is ready for another one."""
        return state

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the inner algorithm, with the optimiser for x."""
        return map_phases(self._optimise, self.algorithm.opening(problem))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the inner algorithm, with the optimiser for x."""
        return map_phases(self._optimise, self.algorithm.phases(problem))

    def _optimise(self, phase: Phase) -> Phase:
        def broadcast(server: OptimisedState) -> Downlink:
            return phase.broadcast(server.inner)

        def server(
            server: OptimisedState, mean: Upload, key: RandomKey
        ) -> OptimisedState:
            after, before = phase.server(server.inner, mean, key), server.inner.x
            # An exchange of other variables leaves x unchanged.
            if after.x is before:
                return server._replace(inner=after)
            # A mean has at least single precision, but x may have half precision.
            before = jax.tree.map(arrays.cast, before, after.x)
            x, state = self.server_optimiser.step(
                tree.subtract(before, after.x), server.optimiser, before
            )
            return OptimisedState(_with_x(after, x), state)

        return phase._replace(broadcast=broadcast, server=server)


def _with_x(state: Any, x: Upper) -> Any:
    if isinstance(state, OptimisedState):  # nested optimisers
        return state._replace(inner=_with_x(state.inner, x))
    return state._replace(x=x)


def with_server_optimiser(
    algorithm: FederatedAlgorithm, optimiser: Any
) -> WithServerOptimiser:
    """Return an algorithm with an optimiser on the server for x.

    Args:
        algorithm: any algorithm except `AutoFedBiO`. Its upper rate determines how far
            devices move x between two exchanges. Use a small rate such as 0.01, since
            the step of an optimiser such as Adam does not depend on it; but not below
            1e-4, where steps vanish in rounding.
        optimiser: an optax transformation, or the result of `optax_optimiser`.

    Example:
        >>> import jax.numpy as jnp, numpy as np, optax
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, run
        ... )
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = with_server_optimiser(FedBiO(0.3), optax.adam(0.1))
        >>> *_, last = run(problem, algorithm, devices, 3.0, 3.0, rounds=300)
        >>> bool(abs(last.x - 1.0) < 0.01)
        True
    """
    return WithServerOptimiser(algorithm, optimiser)
