"""A federation whose checkpoints do not fit on the disk, in a separate process.

A separate process, because Orbax's threads print many errors. It prints the rounds and
the end of the run.
"""

import resource
import sys
from pathlib import Path
from typing import Any

import jax

from fedbilevel import CheckpointError, Checkpoints, Run
from tests.engines.federation import START
from tests.federation.alike import PROBLEM, WEIGHTS, algorithm, sites
from tests.federation.sites import enrolled, federation

NAME = "FedBiO, private lower level"
ROUNDS = 8
LIMIT = 1000
"""Bytes between the size of a device state and of a checkpoint's metadata."""


def arguments(state_directory: Path) -> dict[str, Any]:
    among = sites(NAME, state_directory)
    return {
        "problem": PROBLEM,
        "algorithm": algorithm(NAME),
        "devices": enrolled(among),
        "x": START[0],
        "y": START[1],
        "rounds": ROUNDS,
        "weights": WEIGHTS,
        "engine": federation(among),
    }


def checkpoints(directory: Path) -> Checkpoints:
    return Checkpoints(directory, every=2, keep=ROUNDS)


def main(directory: Path, state_directory: Path, last: int) -> None:
    """Resume a run; after `last` rounds, limit the size of all files."""
    jax.config.update("jax_enable_x64", True)
    try:
        whole = Run(**arguments(state_directory))
        for result in whole.resume(checkpoints(directory)):
            print("round", result.number, flush=True)
            if result.number + 1 == last:
                resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    except CheckpointError as error:
        print("ended:", error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
