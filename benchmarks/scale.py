"""Time and memory from a thousand devices to a million.

`python -m benchmarks.scale` runs LocalBSGVRM on 64 × 10 softmax regression:

- all of 100,000 devices in a round compared with all of 1,000: the time per
  device-step, with the data in memory and loaded on demand, and the peak memory;
- 1,000 devices per round sampled out of 1,000,000 compared with 1,000 out of 1,000;
- the same out of 100,000 with 100 numbers of private state on every device.
"""

import resource
from collections.abc import Callable
from dataclasses import dataclass
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
from fedbilevel import (
    BilevelProblem,
    Devices,
    FederatedAlgorithm,
    FullParticipation,
    InMemoryDevices,
    LocalBSGVRM,
    LocalExamples,
    NeumannSeries,
    OnDemandDevices,
    Participation,
    Phase,
    UniformSample,
    run,
)
from fedbilevel.algorithms import map_phases
from fedbilevel.algorithms.momentum import MomentumState

FEATURES, EXAMPLES = 64, 8
ALGORITHM = LocalBSGVRM(
    learning_rate=0.1,
    hypergradient=NeumannSeries(terms=3, scale=0.1),
    local_steps=5,
    batch_size=2,
)


@jax.tree_util.register_static
@dataclass(frozen=True)
class WithPrivateState:
    """LocalBSGVRM with a private state that devices change in every round."""

    numbers: int = 100

    def init(
        self, problem: BilevelProblem, x: Any, y: Any
    ) -> tuple[MomentumState, Any]:
        server, _ = ALGORITHM.init(problem, x, y)
        return server, jnp.zeros(self.numbers)

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return map_phases(_with_private_state, ALGORITHM.opening(problem))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        return map_phases(_with_private_state, ALGORITHM.phases(problem))


def _with_private_state(phase: Phase) -> Phase:
    def start(downlink: Any, private: Any, data: Any, key: Any) -> Any:
        return phase.start(downlink, (), data, key), private

    def finish(carry: Any, downlink: Any, key: Any) -> Any:
        upload, _, info = phase.finish(carry[0], downlink, key)
        return upload, carry[1] + 1, info

    return phase._replace(
        start=start,
        step=lambda carry, data, key: (phase.step(carry[0], data, key), carry[1]),
        finish=finish,
    )


def local_examples(device: int) -> LocalExamples:
    generator = np.random.default_rng(device)
    return softmax.local_examples(generator, EXAMPLES, FEATURES)


def in_memory(count: int) -> Devices:
    return InMemoryDevices([local_examples(device) for device in range(count)])


def on_demand(count: int) -> Devices:
    return OnDemandDevices(
        count, local_examples, upper_capacity=EXAMPLES, lower_capacity=EXAMPLES
    )


def rounds(
    devices: Devices,
    participation: Participation = FullParticipation(),
    algorithm: FederatedAlgorithm = ALGORITHM,
) -> Callable[[], object]:
    """Return a call that runs the next round."""
    x = jnp.full(FEATURES, -3.0)
    y = jnp.zeros((softmax.CLASSES, FEATURES))
    iterator = run(
        softmax.problem(),
        algorithm,
        devices,
        x,
        y,
        rounds=1_000_000,
        participation=participation,
    )
    return lambda: jax.block_until_ready(next(iterator).server)


def main() -> None:
    fast = wants_fast(__doc__, "a tenth of the devices")
    part = 10 if fast else 1
    few, many, enrolled = 1_000 // part, 100_000 // part, 1_000_000 // part
    rows, bounds = [], []

    def compare(
        name: str, calls: dict[int, Callable[[], object]], per_device: bool
    ) -> float:
        seconds = interleave({str(n): call for n, call in calls.items()}, repeats=7)
        small, large = calls
        scale = small / large if per_device else 1.0
        for n in calls:
            active = n if per_device else few
            steps = active * ALGORITHM.local_steps
            time = median(seconds[str(n)])
            rows.append((name, n, active, f"{time:.3f}", f"{1e6 * time / steps:.1f}"))
        return scale * ratio(seconds[str(large)], seconds[str(small)])

    for name, make in (("on demand", on_demand), ("in memory", in_memory)):
        time_ratio = compare(name, {n: rounds(make(n)) for n in (few, many)}, True)
        bounds.append(Bound(f"device-step, {name}", time_ratio, 1.25))
    sample = UniformSample(few)
    time_ratio = compare(
        "sampled", {n: rounds(on_demand(n), sample) for n in (few, enrolled)}, False
    )
    bounds.append(Bound("sampled round", time_ratio, 1.10))
    time_ratio = compare(
        "private",
        {n: rounds(on_demand(n), sample, WithPrivateState()) for n in (few, many)},
        False,
    )
    bounds.append(Bound("sampled round, private state", time_ratio, 1.10))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    bounds.append(Bound("peak GB", peak, 3.0))
    header = ("data", "enrolled", "per round", "s per round", "µs per device-step")
    print_table(header, rows)
    conclude(bounds)


if __name__ == "__main__":
    main()
