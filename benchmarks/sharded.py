"""Speed-up by several cores and processes, and the cost of their exchanges.

    python -m benchmarks.sharded [--fast]

There are three comparisons, with alternating calls. First, 2 CPU devices in one process
against simulation on the same cores, and against a hand-written `shard_map` program.
Second, weak scaling: 2 processes with twice the devices against 1 process, each process
on a separate core. Third, exchanges of several sizes against a bare `psum`.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import bare, softmax, weak_scaling
from benchmarks.exchange_cost import exchange_costs
from benchmarks.overhead import (
    CASES,
    ROUNDS,
    algorithm,
    initial_state,
    package_rounds,
    repeated,
)
from benchmarks.timing import (
    REPEATS,
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import Sharded, Simulation

FASTER = 0.85
OVERHEAD = 1.10
EFFICIENCY = 0.85


def by_hand(
    number: int, settings: bare.Settings, mesh: Mesh
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the hand-written round and its data."""
    shards = mesh.size
    whole = softmax.devices(settings.devices).cohort(np.arange(settings.devices))
    split = NamedSharding(mesh, PartitionSpec("shards"))

    def place(leaf: jax.Array) -> jax.Array:
        array: jax.Array = jax.device_put(
            leaf.reshape(shards, -1, *leaf.shape[1:]), split
        )
        return array

    arrays = (
        tuple(map(place, whole.upper.arrays)),
        tuple(map(place, whole.lower.arrays)),
    )
    numbers = np.arange(settings.devices, dtype=np.int32)
    sizes = np.asarray(whole.upper.size)
    offsets = np.asarray(whole.upper.offset) % (sizes.sum() // shards)
    indices = [jax.device_put(part, split) for part in (offsets, sizes, numbers)]
    return bare.sharded_program(settings, number, mesh), (arrays, *indices)


def bare_rounds(
    number: int, settings: bare.Settings, mesh: Mesh
) -> Callable[[], object]:
    """Return a call that runs the next rounds of the hand-written program."""
    round_program, data = by_hand(number, settings, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())
    return repeated(round_program, data, jax.device_put(initial_state(), replicated))


def on_two_cores(fast: bool) -> list[Bound]:
    mesh = Mesh(np.array(jax.devices()), ("shards",))
    rows, bounds = [], []
    repeats = 3 if fast else REPEATS
    for count, batch, group in CASES[: 1 if fast else None]:
        settings = bare.Settings(count, batch, min(group, count // mesh.size))
        devices = softmax.devices(count)
        for number in (1,) if fast else (1, 2):
            seconds = interleave(
                {
                    "sharded": package_rounds(number, settings, devices, Sharded(mesh)),
                    "simulation": package_rounds(
                        number, settings, devices, Simulation()
                    ),
                    "by hand": bare_rounds(number, settings, mesh),
                },
                repeats,
            )
            name = f"{algorithm(number, settings).__class__.__name__}({count},{batch})"
            gain = ratio(seconds["sharded"], seconds["simulation"])
            cost = ratio(seconds["sharded"], seconds["by hand"])
            times = [f"{1e3 * median(s) / ROUNDS:.1f}" for s in seconds.values()]
            rows.append((name, *times, f"{gain:.3f}", f"{cost:.3f}"))
            bounds.append(Bound(f"{name} of simulation", gain, FASTER))
            bounds.append(Bound(f"{name} of by hand", cost, OVERHEAD))
    header = "case", "sharded ms", "simulation ms", "by hand ms", "gain", "cost"
    print_table(header, rows)
    return bounds


def main() -> None:
    fast = wants_fast(__doc__, "one small case, fewer repeats")
    jax.config.update("jax_num_cpu_devices", 2)
    bounds = on_two_cores(fast)
    exchange_costs((10_000,) if fast else (10_000, 100_000, 10**6, 10**7))
    efficiency = weak_scaling.efficiency(fast)
    conclude([*bounds, Bound("weak scaling", efficiency, EFFICIENCY, at_least=True)])


if __name__ == "__main__":
    main()
