"""One process of several: run algorithms on the sharded engine, store the results."""

import os
import sys
from pathlib import Path

import jax
import numpy as np

from fedbilevel import LocalExamples, Sharded, UniformSample
from tests.engines import federation


def join() -> int:
    """Join the other processes; return the index of this process."""
    process = int(os.environ["PROCESS"])
    jax.config.update("jax_enable_x64", True)
    address = f"127.0.0.1:{os.environ['PORT']}"
    jax.distributed.initialize(address, int(os.environ["PROCESSES"]), process)
    return process


def main(directory: Path, names: list[str]) -> None:
    process = join()
    loaded: set[int] = set()

    def load(device: int) -> LocalExamples:
        loaded.add(device)
        return federation.held()[device]

    for number, name in enumerate(names):
        # In half of them, each process loads the data of its own devices alone.
        devices = federation.on_demand(load) if number % 2 else federation.in_memory()
        rounds = federation.trajectory(name, Sharded(), devices=devices)
        if process == 0:
            np.save(directory / f"{number}.npy", np.array(rounds))
    # In some rounds of a sample this process has no device to load.
    for _ in federation.trajectory(
        names[-1],
        Sharded(),
        devices=federation.on_demand(load),
        participation=UniformSample(2),
        rounds=4,
    ):
        pass
    # Five devices on four shards: two on each of the first two, one on the third.
    mine = {0, 1, 2, 3} if process == 0 else {4}
    assert loaded <= mine, f"process {process} loaded {loaded}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
