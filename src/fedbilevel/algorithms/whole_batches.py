"""Whole batches: every draw of an algorithm returns all examples of the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase, Private, Server
from fedbilevel.algorithms.wrapper import map_phases
from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.mathematics.batches import WholeBatch
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Role, register


@register
@dataclass(frozen=True)
class WithWholeBatches:
    """An algorithm whose batches are all examples of the device; no sampling noise.

    The batch size of the algorithm has no effect. A step reads all examples once for
    each derivative. `Costs` count the examples of the device that the engine reads
    first for every device, so they are exact only for devices of equal sizes.

    Attributes:
        algorithm: the inner algorithm.
    """

    algorithm: Annotated[Any, Role.SAME_STEPS]

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[Server, Private]:
        """Return the initial states of the inner algorithm."""
        states: tuple[Server, Private] = self.algorithm.init(problem, x, y)
        return states

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the inner algorithm, with whole batches."""
        return map_phases(_with_whole_batches, self.algorithm.opening(problem))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the inner algorithm, with whole batches."""
        return map_phases(_with_whole_batches, self.algorithm.phases(problem))

    def around(self, algorithm: FederatedAlgorithm) -> "WithWholeBatches":
        """Return another algorithm with whole batches."""
        return WithWholeBatches(algorithm)


def with_whole_batches(algorithm: FederatedAlgorithm) -> WithWholeBatches:
    """Return an algorithm whose batches are all examples of the device.

    Use it where examples are few: it removes the noise of sampling. Levels of devices
    may have different numbers of examples.

    Args:
        algorithm: any algorithm that draws batches.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples, run
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> rows = LocalExamples(upper=np.array([0.0, 2.0]), lower=np.ones(3))
        >>> algorithm = with_whole_batches(FedBiO(0.3, upper_rate=0.1))
        >>> *_, last = run(
        ...     problem, algorithm, InMemoryDevices([rows]), 3.0, 0.0, rounds=200
        ... )
        >>> round(float(last.x), 2)  # Φ(x) = mean((x − 0)², (x − 2)²)
        1.0
    """
    return WithWholeBatches(algorithm)


class _WholeExamples(NamedTuple):
    """Examples that return all of them as each batch."""

    examples: Examples

    @property
    def size(self) -> Any:
        """The number of examples."""
        return self.examples.size

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return the same batch of all examples several times."""
        return (WholeBatch(self.examples),) * draws

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean of a function over all examples."""
        return self.examples.mean(function, batch_size)


class _WholeData(NamedTuple):
    """The data of a device, with whole batches."""

    upper: _WholeExamples
    lower: _WholeExamples


def _with_whole_batches(phase: Phase) -> Phase:
    def whole(data: DeviceData) -> DeviceData:
        return _WholeData(_WholeExamples(data.upper), _WholeExamples(data.lower))

    def start(downlink: Any, private: Private, data: DeviceData, key: RandomKey) -> Any:
        return phase.start(downlink, private, whole(data), key)

    def step(carry: Any, data: DeviceData, key: RandomKey) -> Any:
        return phase.step(carry, whole(data), key)

    return phase._replace(start=start, step=step)
