"""What a run will cost, known before it begins."""

import numpy as np

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.devices import Devices
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.preparation import RunSpec, prepare
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


def predict_costs(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    participants: int | None = None,
) -> Costs:
    """Return the samples, exchanges and bytes that `run` will have counted at its end.

    Nothing is computed but shapes, so the number of participants may be any: that of a
    federation which this machine could not hold.

    Args:
        problem: as for `run`, and so are the others.
        algorithm: as for `run`.
        devices: of which one is looked at.
        x: as for `run`.
        y: as for `run`.
        rounds: as for `run`.
        participants: devices that take part in each round; all by default.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, predict_costs
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> predict_costs(*what, rounds=100, participants=10**9).bytes_up
        1200000000000
    """
    job = prepare(RunSpec(problem, algorithm, devices, x, y, rounds)).job
    count = devices.device_count if participants is None else participants
    if not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(
            f"participants is {count!r}; give a whole number of devices, at least 1."
        )
    spent = Costs()
    for references, times in ((job.opening, 1), (job.phases, rounds - 1)):
        for reference in references:
            exchange = job.costs[reference].times(count)
            spent = spent.plus(exchange.repeated(times))
    return spent
