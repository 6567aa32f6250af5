"""What the progress display costs a run: rounds of milliseconds, in a real terminal.

    python -m benchmarks.progress [--fast]

Two runs take turns, one shown live in a pseudo-terminal, measured figures and all, the
other not at all.
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
FIGURES = {"loss": 0.123456, "training_loss": 0.234567, "accuracy": 0.987654}


@contextmanager
def terminal() -> Iterator[None]:
    """Let what goes to the screen go to a terminal that somebody reads."""
    leader, follower = pty.openpty()

    def read() -> None:
        # Linux says by an error that the other side is closed.
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


def turns(shown: bool, rounds: int) -> Callable[[], object]:
    """Return a call that runs the next rounds."""
    generator = np.random.default_rng(0)
    held = [softmax.local_examples(generator, 40, FEATURES) for _ in range(8)]
    endless = run(
        softmax.problem(),
        ALGORITHM,
        InMemoryDevices(held),
        jnp.full(FEATURES, -4.0),
        jnp.zeros((softmax.CLASSES, FEATURES)),
        rounds=1_000_000,
    )

    def call() -> None:
        with progress("a run", 1_000_000, quiet=not shown) as show:
            for done in islice(endless, rounds):
                record = Record(done.number + 1, 0.0, done.costs, FIGURES)
                show(done.number + 1, done.costs, record)
                last = done
            jax.block_until_ready(last.server)

    return call


def main() -> None:
    fast = wants_fast(__doc__, "fewer rounds and turns, no bound")
    rounds = 20 if fast else 300
    with terminal():
        seconds = interleave(
            {"shown": turns(True, rounds), "not shown": turns(False, rounds)},
            repeats=3 if fast else 2 * REPEATS + 1,
        )
    figure = ratio(seconds["shown"], seconds["not shown"])
    times = [f"{median(one) / rounds * 1e3:.2f}" for one in seconds.values()]
    header = "rounds", "shown ms/round", "not shown ms/round", "ratio"
    print_table(header, [(rounds, *times, f"{figure:.3f}")])
    conclude([Bound("with progress", figure, 10.0 if fast else LIMIT)])


if __name__ == "__main__":
    main()
