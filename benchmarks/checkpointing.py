"""What checkpoints cost a run: one every 10 rounds, a million parameters.

    python -m benchmarks.checkpointing [--fast]

Whole runs of 30 rounds with and without checkpoints take turns; the time of the one
includes waiting until its last checkpoint is on the disk.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import softmax
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import Checkpoints, InMemoryDevices, LocalBSGVRM, NeumannSeries, run

LIMIT = 1.03
ROUNDS, EVERY = 30, 10
ALGORITHM = LocalBSGVRM(
    learning_rate=0.1,
    hypergradient=NeumannSeries(terms=5, scale=1e-6),
    lower_rate=1e-5,
    local_steps=10,
    batch_size=32,
)


def rounds(features: int, checkpoints: bool) -> Callable[[], object]:
    """Return a call that makes a whole run."""
    generator = np.random.default_rng(0)
    held = [softmax.local_examples(generator, 40, features) for _ in range(4)]
    devices, problem = InMemoryDevices(held), softmax.problem()
    x, y = jnp.full(features, -4.0), jnp.zeros((softmax.CLASSES, features))

    def call() -> None:
        folder = Path(tempfile.mkdtemp())
        settings: dict[str, Any] = {"rounds": ROUNDS}
        if checkpoints:
            settings["checkpoints"] = Checkpoints(folder, every=EVERY)
        *_, last = run(problem, ALGORITHM, devices, x, y, **settings)
        jax.block_until_ready(last.server)
        shutil.rmtree(folder)

    return call


def main() -> None:
    fast = wants_fast(__doc__, "a tenth of the parameters, fewer turns, no bound")
    features = 10_000 if fast else 100_000
    seconds = interleave(
        {"with": rounds(features, True), "without": rounds(features, False)},
        repeats=3 if fast else 9,
    )
    figure = ratio(seconds["with"], seconds["without"])
    times = [f"{median(one):.2f}" for one in seconds.values()]
    parameters = features * (softmax.CLASSES + 1)
    header = "parameters", "with s", "without s", "ratio"
    print_table(header, [(parameters, *times, f"{figure:.3f}")])
    conclude([Bound("with checkpoints", figure, 10.0 if fast else LIMIT)])


if __name__ == "__main__":
    main()
