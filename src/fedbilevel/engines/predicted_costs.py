"""Prediction of the costs of a run."""

import numpy as np

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.run import Run, prepare_arrays


def predict_costs(run: Run, participants: int | None = None) -> Costs:
    """Return the samples, exchanges and bytes of a whole run, without running it.

    Only shapes are computed, so the number of participants may exceed what this machine
    could simulate. The data of one device are read.

    Args:
        run: the run.
        participants: number of participants of each round; by default that of the run's
            first round.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, Run,
        ...     predict_costs,
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> run = Run(
        ...     BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0, rounds=100
        ... )
        >>> predict_costs(run).bytes_up, predict_costs(run, 10**9).bytes_up
        (4800, 1200000000000)
    """
    job = prepare_arrays(run).job
    count = job.cohort_size if participants is None else participants
    if not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(
            f"participants is {count!r}. Pass a whole number of devices, at least 1."
        )
    spent = Costs()
    for references, times in ((job.opening, 1), (job.phases, run.rounds - 1)):
        for reference in references:
            exchange = job.costs[reference].times(count)
            spent = spent.plus(exchange.repeated(times))
    return spent
