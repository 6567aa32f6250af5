"""A run of 40 rounds in a separate process, to be killed and started again."""

import os
import sys
from pathlib import Path

import jax
import numpy as np

from fedbilevel import Checkpoints, Engine, FedBiO, Run, Sharded, Simulation
from tests import quadratic
from tests.engines import federation
from tests.engines.processes import join

ROUNDS = 40


def main(directory: Path, result: Path) -> None:
    engine: Engine = Simulation(chunk_size=2)
    if "PROCESSES" in os.environ:
        join()
        engine = Sharded()
    whole = Run(
        quadratic.problem(),
        FedBiO(0.1, 0.3, 0.5, 0.4, local_steps=2, private_lower=True),
        federation.in_memory(),
        *federation.START,
        rounds=ROUNDS,
        weights=federation.WEIGHTS,
        engine=engine,
    )
    for outcome in whole.resume(Checkpoints(directory, every=2, keep=2)):
        print(f"round {outcome.number}", flush=True)
        x, y = np.asarray(outcome.x), np.asarray(outcome.y)
    if jax.process_index() == 0:
        np.save(result, np.concatenate([x, y]))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
