"""Overhead of the package over a bare JAX program of the same algorithm.

`python -m benchmarks.overhead` times alternating calls of 5 rounds that wait for the
last round only. Both draw the same samples, and `tests/test_benchmarks.py` checks that
they give the same numbers. If a round takes few milliseconds, calls have 20 rounds, and
the package also yields every fifth round or only the last (`run(..., every=20)`). The
bound then applies to `every=20`; the other rows have none.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import bare, softmax
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import (
    Engine,
    FederatedAlgorithm,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Simulation,
    run,
)

LIMIT = 1.10
ROUNDS = 5
"""Rounds in one timed call; the next round is prepared meanwhile, as in a run."""
CASES = ((8, 1, 8), (8, 32, 8), (64, 32, 8))
"""Devices, batch size, and the fastest group size of the bare program."""
SHORT = (8, 1, 8)
"""The case whose rounds are so short that Python's time matters."""
PERIODS = (1, 5, 20)
"""Values of `every` in that case; a call has as many rounds as the last."""


def algorithm(number: int, settings: bare.Settings) -> FederatedAlgorithm:
    make = LocalBSGM if number == 1 else LocalBSGVRM
    return make(
        learning_rate=settings.eta,
        hypergradient=NeumannSeries(settings.q, settings.theta),
        upper_rate=settings.rho1,
        lower_rate=settings.rho2,
        upper_mixing=settings.alpha,
        lower_mixing=settings.beta,
        local_steps=settings.p,
        batch_size=settings.batch,
    )


def package_rounds(
    number: int,
    settings: bare.Settings,
    devices: InMemoryDevices,
    engine: Engine = Simulation(),
    every: int = 1,
    rounds: int = ROUNDS,
) -> Callable[[], object]:
    """Return a call that runs the next rounds and yields every n-th."""
    iterator = run(
        softmax.problem(),
        algorithm(number, settings),
        devices,
        *softmax.start(),
        rounds=1_000_000,
        engine=engine,
        every=every,
    )

    def call() -> None:
        for _ in range(rounds // every):
            last = next(iterator)
        jax.block_until_ready(last.server)

    call()
    return call


def bare_rounds(
    number: int,
    settings: bare.Settings,
    devices: InMemoryDevices,
    rounds: int = ROUNDS,
) -> Callable[[], object]:
    """Return a call that runs the next rounds of the bare program."""
    data = devices.cohort(np.arange(settings.devices))
    arrays = tuple(data.upper.arrays), tuple(data.lower.arrays)
    offsets, sizes = jnp.asarray(data.upper.offset), jnp.asarray(data.upper.size)
    round_program = bare.program(settings, number)
    return repeated(round_program, (arrays, offsets, sizes), initial_state(), rounds)


def initial_state() -> tuple[jax.Array, ...]:
    x, y = softmax.start()
    return x, y, jnp.zeros_like(x), jnp.zeros_like(y)


def repeated(
    round_program: Callable[..., Any],
    data: tuple[Any, ...],
    state: Any,
    rounds: int = ROUNDS,
) -> Callable[[], object]:
    """Return a call that runs the next rounds of a hand-written program."""
    key, number = jax.random.key(0), 0

    def call() -> object:
        nonlocal state, number
        for _ in range(rounds):
            number += 1
            state = round_program(state, *data, key, np.int32(number))
        return jax.block_until_ready(state)

    return call


def main() -> None:
    fast = wants_fast(__doc__, "the smallest case only")
    rows, bounds = [], []
    for case in CASES[: 1 if fast else None]:
        settings, devices = bare.Settings(*case), softmax.devices(case[0])
        periods, rounds = (PERIODS, PERIODS[-1]) if case == SHORT else ((1,), ROUNDS)
        for number in (1, 2):
            seconds = interleave(
                {
                    "bare": bare_rounds(number, settings, devices, rounds),
                    **{
                        f"every {every}": package_rounds(
                            number, settings, devices, every=every, rounds=rounds
                        )
                        for every in periods
                    },
                }
            )
            name = algorithm(number, settings).__class__.__name__
            for every in periods:
                package = seconds[f"every {every}"]
                overhead = ratio(package, seconds["bare"])
                milliseconds = [
                    f"{1e3 * median(calls) / rounds:.1f}"
                    for calls in (package, seconds["bare"])
                ]
                rows.append((name, *case[:2], every, *milliseconds, f"{overhead:.3f}"))
            # The last value is that of the longest period.
            bounds.append(Bound(f"{name}({case[0]},{case[1]})", overhead, LIMIT))
    header = "algorithm", "devices", "batch", "every", "package ms", "bare ms", "ratio"
    print_table(header, rows)
    conclude(bounds)


if __name__ == "__main__":
    main()
