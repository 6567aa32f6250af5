"""Overhead of checkpoints: one every 10 rounds, a million parameters.

    python -m benchmarks.checkpointing [--fast]

Two runs alternate every 10 rounds. A checkpoint is in the middle of such a block, so
that writing it in the background slows that run and not the other.
"""

import tempfile
from collections.abc import Callable
from itertools import islice
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import softmax
from benchmarks.timing import (
    REPEATS,
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import Checkpoints, InMemoryDevices, LocalBSGVRM, NeumannSeries, run

LIMIT = 1.03
EVERY = 10
ALGORITHM = LocalBSGVRM(
    learning_rate=0.1,
    hypergradient=NeumannSeries(terms=5, scale=1e-6),
    lower_rate=1e-5,
    local_steps=5,
    batch_size=4,
)


def timed_rounds(
    features: int, checkpoints: Checkpoints | None
) -> Callable[[], object]:
    """Return a call that runs the next rounds, half of them before a checkpoint."""
    generator = np.random.default_rng(0)
    examples = [softmax.local_examples(generator, 40, features) for _ in range(4)]
    rounds = run(
        softmax.problem(),
        ALGORITHM,
        InMemoryDevices(examples),
        jnp.full(features, -4.0),
        jnp.zeros((softmax.CLASSES, features)),
        rounds=1_000_000,
        checkpoints=checkpoints,
    )

    def call(number: int = EVERY) -> None:
        for r in islice(rounds, number):
            last = r  # a list of rounds would keep all states in memory
        jax.block_until_ready(last.server)

    call(EVERY // 2)
    return call


def main() -> None:
    fast = wants_fast(__doc__, "a hundredth of the parameters, fewer repeats, no bound")
    features = 1_000 if fast else 100_000
    with tempfile.TemporaryDirectory() as directory:
        seconds = interleave(
            {
                "with": timed_rounds(features, Checkpoints(directory, every=EVERY)),
                "without": timed_rounds(features, None),
            },
            repeats=3 if fast else REPEATS,
        )
    overhead = ratio(seconds["with"], seconds["without"])
    times = [f"{median(calls):.2f}" for calls in seconds.values()]
    parameters = features * (softmax.CLASSES + 1)
    header = "parameters", "with s", "without s", "ratio"
    print_table(header, [(parameters, *times, f"{overhead:.3f}")])
    conclude([Bound("with checkpoints", overhead, 10.0 if fast else LIMIT)])


if __name__ == "__main__":
    main()
