"""Prediction of the costs of a run."""

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
    """Return the samples, exchanges and bytes of a whole run, without running it.

    Only shapes are computed, so the number of participants may exceed what this machine
    could simulate.

    Args:
        problem: as for `run`.
        algorithm: as for `run`.
        devices: as for `run`; the data of one device are read.
        x: as for `run`.
        y: as for `run`.
        rounds: as for `run`.
        participants: number of participants of each round; all devices by default.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, predict_costs
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> inputs = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> predict_costs(*inputs, rounds=100, participants=10**9).bytes_up
        1200000000000
    """
    job = prepare(RunSpec(problem, algorithm, devices, x, y, rounds)).job
    count = devices.device_count if participants is None else participants
    if not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(
            f"participants is {count!r}. Pass a whole number of devices, at least 1."
        )
    spent = Costs()
    for references, times in ((job.opening, 1), (job.phases, rounds - 1)):
        for reference in references:
            exchange = job.costs[reference].times(count)
            spent = spent.plus(exchange.repeated(times))
    return spent
