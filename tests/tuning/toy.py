"""A scalar problem: Φ(x) = (x − 1)² with y*(x) = x, from x = y = 3."""

from functools import cache

import jax.numpy as jnp
import numpy as np

from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices, LocalExamples

PROBLEM = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
    lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
)
SLOW = FedBiO(1.0, upper_rate=0.01, lower_rate=0.1, adjoint_rate=0.1)


@cache
def devices() -> InMemoryDevices:
    """Return four equal devices; call it in double precision."""
    ones = np.ones(1)
    return InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
