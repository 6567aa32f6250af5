"""The federation for which every engine must give the same numbers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedbilevel import Engine, InMemoryDevices, LocalExamples, OnDemandDevices, run
from tests import quadratic
from tests.algorithms.table import ALGORITHMS

SIZES = (3, 8, 5, 1, 6)  # ragged
WEIGHTS = np.array([1.0, 0.0, 2.5, 0.5, 1.0])  # uneven, and device 1 is absent
START = (
    np.linspace(-1.0, 1.0, quadratic.X_SIZE),
    np.linspace(1.0, 2.0, quadratic.Y_SIZE),
)
ROUNDS = 3


def held() -> list[LocalExamples]:
    generator = np.random.default_rng(7)
    return [quadratic.examples(generator, size, 0.3) for size in SIZES]


def in_memory() -> InMemoryDevices:
    return InMemoryDevices(held())


def on_demand(load: Callable[[int], LocalExamples] | None = None) -> OnDemandDevices:
    most = max(SIZES)
    examples = held()
    return OnDemandDevices(len(SIZES), load or examples.__getitem__, most, most)


def trajectory(name: str, engine: Engine, **settings: Any) -> list[np.ndarray]:
    """Return all numbers of the server state, one array for each round."""
    rounds = run(
        quadratic.problem(),
        ALGORITHMS[name](),
        settings.pop("devices", None) or in_memory(),
        *START,
        **{"rounds": ROUNDS, "weights": WEIGHTS, "engine": engine, **settings},
    )
    return [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.server)])
        for result in rounds
    ]
