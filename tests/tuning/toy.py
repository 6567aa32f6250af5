"""A scalar problem: Φ(x) = (x − 1)² with y*(x) = x, from 3 and from rest."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices, LocalExamples

PROBLEM = BilevelProblem(
    upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
    lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
)
ONES = np.ones(1)
DEVICES = InMemoryDevices.sharing(LocalExamples(ONES, ONES), 4)
START = jnp.array(3.0), jnp.array(3.0)
SLOW = FedBiO(1.0, upper_rate=0.01, lower_rate=0.1, adjoint_rate=0.1)
ARGUMENTS: Any = PROBLEM, SLOW, DEVICES, 3.0, 3.0
