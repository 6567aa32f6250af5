"""x moved on the server by an optax optimiser, around any algorithm."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.protocol import (
    Downlink,
    FederatedAlgorithm,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.optax_optimiser import as_tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import register


class OptimisedState(NamedTuple):
    """The state of the algorithm inside, and that of the optimiser.

    Attributes:
        inner: the state of the algorithm inside.
        optimiser: the state of the optimiser, such as Adam's two moments of x.

    Example:
        >>> from fedbilevel.algorithms.fedbio import FedBiOState
        >>> OptimisedState(FedBiOState(1.0, 2.0, 0.0, step=0), ()).x
        1.0
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
    def step(self) -> Any:
        """The number of local steps so far, where the algorithm inside counts them."""
        return self.inner.step


@register
@dataclass(frozen=True)
class ServerOptimised:
    """An algorithm whose step on x is taken by an optimiser on the server.

    Devices do the same work as before. The server takes the step x − x̄ that the
    algorithm would have made for a gradient, and the optimiser decides how far to go.
    y and all other variables are averaged as the algorithm does. With `optax.sgd(1.0)`
    x becomes x̄: the algorithm as it is.

    Why it helps: an optimiser such as Adam divides each coordinate of x by its own
    usual size, so one rate serves problems whose hypergradients differ by orders of
    magnitude, and coordinates of x that differ as much.

    Attributes:
        algorithm: the algorithm inside.
        optimiser: the transformation of the step on x; make it with `optax_optimiser`
            where runs are to be compared, written to a file or resumed.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, Adaptive
        Federated Optimization, arXiv 2003.00295.

    Example:
        >>> import optax
        >>> from fedbilevel import FedBiO, with_server_optimiser
        >>> with_server_optimiser(FedBiO(0.1), optax.adam(0.01)).algorithm.local_steps
        1
    """

    algorithm: Any
    optimiser: Any

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, AutoFedBiO):
            raise ValueError(
                "AutoFedBiO moves x by an optimiser of its own; give "
                "with_server_optimiser another algorithm, such as FedBiO."
            )
        object.__setattr__(self, "optimiser", as_tree(self.optimiser))

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[OptimisedState, Private]:
        """Return the first state of the algorithm inside and of the optimiser."""
        inner, private = self.algorithm.init(problem, x, y)
        # Variance reduction corrects its estimates from one x to the next, and must
        # know of a step that the server took.
        inner = getattr(self.algorithm, "moved_by_server", lambda same: same)(inner)
        return OptimisedState(inner, self.optimiser.init(inner.x)), private

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the algorithm inside, x moved by the optimiser."""
        return tuple(map(self._optimised, self.algorithm.opening(problem)))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the algorithm inside, x moved by the optimiser."""
        return tuple(map(self._optimised, self.algorithm.phases(problem)))

    def _optimised(self, phase: Phase) -> Phase:
        def broadcast(server: OptimisedState) -> Downlink:
            return phase.broadcast(server.inner)

        def server(
            server: OptimisedState, mean: Upload, key: RandomKey
        ) -> OptimisedState:
            after, before = phase.server(server.inner, mean, key), server.inner.x
            # An exchange about other variables hands x on as it is.
            if after.x is before:
                return server._replace(inner=after)
            # A mean has at least single precision, which x may not have.
            before = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), before, after.x)
            x, state = self.optimiser.step(
                tree.subtract(before, after.x), server.optimiser, before
            )
            return OptimisedState(_with_x(after, x), state)

        return phase._replace(broadcast=broadcast, server=server)


def _with_x(state: Any, x: Upper) -> Any:
    if isinstance(state, OptimisedState):  # an optimiser around another
        return state._replace(inner=_with_x(state.inner, x))
    return state._replace(x=x)


def with_server_optimiser(
    algorithm: FederatedAlgorithm, optimiser: Any
) -> ServerOptimised:
    """Return an algorithm with its step on x taken by an optimiser on the server.

    Args:
        algorithm: any algorithm. Its upper rate decides how far devices move x
            between two exchanges, away from the x that the server goes on from: give a
            small one, such as 0.01, since optimisers such as Adam make their own step
            of whatever came; but not one below 1e-4, whose steps rounding swallows.
        optimiser: a transformation of optax, or one named by `optax_optimiser`.

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
    return ServerOptimised(algorithm, optimiser)
