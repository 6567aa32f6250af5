"""The time of an exchange by number of parameters, compared with a bare `psum`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.timing import interleave, print_table, ratio
from fedbilevel import (
    BilevelProblem,
    InMemoryDevices,
    LocalExamples,
    Phase,
    Sharded,
    Upload,
    run,
)


class Point(NamedTuple):
    """The server's state."""

    x: Any
    y: Any


@jax.tree_util.register_static
@dataclass(frozen=True)
class Averaging:
    """An algorithm whose devices return y unchanged; the server averages it."""

    def init(self, problem: BilevelProblem, x: Any, y: Any) -> tuple[Point, tuple[()]]:
        return Point(x, y), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return (
            Phase(
                name="return y",
                steps=0,
                broadcast=lambda server: server.y,
                start=lambda downlink, private, data, key: downlink,
                step=lambda carry, data, key: carry,
                finish=lambda carry, downlink, key: (Upload((carry,)), (), {}),
                server=lambda server, mean, key: server._replace(y=mean.update[0]),
            ),
        )


def engine_call(size: int, mesh: Mesh) -> Callable[[], object]:
    def loss(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(batch) + 0.0 * jnp.sum(y)

    rows = np.ones(1, np.float32)
    devices = InMemoryDevices.sharing(LocalExamples(rows, rows), mesh.size)
    rounds = run(
        BilevelProblem(loss, loss),
        Averaging(),
        devices,
        0.0,
        jnp.ones(size),
        rounds=10**9,
        engine=Sharded(mesh),
    )
    return lambda: jax.block_until_ready(next(rounds).server)


def psum_call(size: int, mesh: Mesh) -> Callable[[], object]:
    split, whole = PartitionSpec("shards"), PartitionSpec()
    program = jax.jit(
        jax.shard_map(
            lambda part: jax.lax.psum(part[0], "shards"),
            mesh=mesh,
            in_specs=split,
            out_specs=whole,
            check_vma=False,
        )
    )
    parts = jax.device_put(jnp.ones((mesh.size, size)), NamedSharding(mesh, split))
    return lambda: jax.block_until_ready(program(parts))


def exchange_costs(sizes: Sequence[int]) -> None:
    """Print the milliseconds of an exchange and of a psum, by size."""
    mesh = Mesh(np.array(jax.devices()), ("shards",))
    rows = []
    for size in sizes:
        seconds = interleave(
            {"exchange": engine_call(size, mesh), "psum": psum_call(size, mesh)}
        )
        times = [f"{1e3 * median(calls):.2f}" for calls in seconds.values()]
        overhead = ratio(seconds["exchange"], seconds["psum"])
        rows.append((size, *times, f"{overhead:.2f}"))
    print_table(("parameters", "exchange ms", "psum ms", "ratio"), rows)
