"""A federation whose checkpoints do not fit, in a process of its own.

Orbax's threads say what went wrong in many ways, all of them loud. Prints the rounds
and how the run ended.
"""

import resource
import sys
from pathlib import Path
from typing import Any

import jax

from fedbilevel import CheckpointError, Checkpoints, resume
from tests.engines.federation import START
from tests.federation.alike import PROBLEM, WEIGHTS, algorithm, sites
from tests.federation.sites import enrolled, federation

NAME = "FedBiO, private lower level"
ROUNDS = 8
LIMIT = 1000
"""What devices keep is smaller, and a checkpoint's notes are larger."""


def arguments(kept: Path) -> dict[str, Any]:
    among = sites(NAME, kept)
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


def main(directory: Path, kept: Path, last: int) -> None:
    """Resume; after so many rounds, if any, no file may grow beyond a limit."""
    jax.config.update("jax_enable_x64", True)
    try:
        for done in resume(**arguments(kept), checkpoints=checkpoints(directory)):
            print("round", done.number, flush=True)
            if done.number + 1 == last:
                resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    except CheckpointError as error:
        print("ended:", error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
