"""One of two processes with different arguments, which the engine must reject."""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedbilevel import Checkpoints, FedBiO, Run, Sharded, run
from fedbilevel.engines.checkpoints.digests import DamageError, verified_notes
from tests import quadratic
from tests.engines import federation
from tests.engines.processes import join


def main(directory: Path) -> None:
    process = join()
    settings: dict[str, Any] = {
        "problem": quadratic.problem(),
        "algorithm": FedBiO(0.1, 0.3, 0.5, 0.4, private_lower=True),
        "devices": federation.in_memory(),
        "x": federation.START[0],
        "y": federation.START[1],
        "engine": Sharded(),
    }
    checkpoints = Checkpoints(directory, every=2)
    *_, last = run(**settings, rounds=4, checkpoints=checkpoints)
    print("end", float(last.x[0]))

    def half_blind(path: Path) -> dict[str, Any]:
        if process == 1 and path.name == "round_4":
            raise DamageError("it is out of sight here")
        return verified_notes(path)

    with patch("fedbilevel.engines.checkpoints.store.verified_notes", half_blind):
        for result in Run(**settings, rounds=4).resume(checkpoints):
            print("resumed", result.number)
    print("end", float(result.x[0]))
    try:
        run(**settings, rounds=1, seed=process).__next__()
    except ValueError as error:
        print("refused", error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
