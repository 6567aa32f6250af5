"""Overhead of the progress display: rounds of milliseconds, in a real terminal.

    python -m benchmarks.progress [--fast]

Two runs alternate: the progress and metrics of one are shown in a pseudo-terminal,
those of the other are not.
"""

import os
import pty
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
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
from fedbilevel import InMemoryDevices, LocalBSGVRM, NeumannSeries, run
from fedbilevel.commands.progress import progress
from fedbilevel.tracking import Record

LIMIT = 1.02
FEATURES = 784
ALGORITHM = LocalBSGVRM(
    learning_rate=0.1,
    hypergradient=NeumannSeries(terms=5, scale=1e-3),
    lower_rate=1e-2,
    local_steps=10,
)
METRICS = {"loss": 0.123456, "training_loss": 0.234567, "accuracy": 0.987654}


@contextmanager
def terminal() -> Iterator[None]:
    """Redirect standard error to a pseudo-terminal, and read it."""
    leader, follower = pty.openpty()

    def read() -> None:
        # Linux raises OSError when the other side is closed.
        with open(leader, "rb", buffering=0, closefd=False) as screen:
            try:
                while screen.read(4096):
                    pass
            except OSError:
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with open(follower, "w") as screen, redirect_stderr(screen):
        yield
    reader.join()
    os.close(leader)


def timed_rounds(shown: bool, rounds: int) -> Callable[[], object]:
    """Return a call that runs the next rounds."""
    generator = np.random.default_rng(0)
    examples = [softmax.local_examples(generator, 40, FEATURES) for _ in range(8)]
    iterator = run(
        softmax.problem(),
        ALGORITHM,
        InMemoryDevices(examples),
        jnp.full(FEATURES, -4.0),
        jnp.zeros((softmax.CLASSES, FEATURES)),
        rounds=1_000_000,
    )

    def call() -> None:
        with progress("a run", 1_000_000, quiet=not shown) as show:
            for r in islice(iterator, rounds):
                record = Record(r.number + 1, 0.0, r.costs, METRICS)
                show(r.number + 1, r.costs, record)
            jax.block_until_ready(r.server)

    return call


def main() -> None:
    fast = wants_fast(__doc__, "fewer rounds and repeats, no bound")
    rounds = 20 if fast else 300
    with terminal():
        seconds = interleave(
            {
                "shown": timed_rounds(True, rounds),
                "not shown": timed_rounds(False, rounds),
            },
            repeats=3 if fast else 2 * REPEATS + 1,
        )
    overhead = ratio(seconds["shown"], seconds["not shown"])
    times = [f"{median(calls) / rounds * 1e3:.2f}" for calls in seconds.values()]
    header = "rounds", "shown ms/round", "not shown ms/round", "ratio"
    print_table(header, [(rounds, *times, f"{overhead:.3f}")])
    conclude([Bound("with progress", overhead, 10.0 if fast else LIMIT)])


if __name__ == "__main__":
    main()
