"""Costs of a round: measured, by formula, and extrapolated to any size.

`python -m benchmarks.costs` prints

- for every algorithm and two sizes of model, the costs of a round per device as counted
  by `Costs`, the state of a device, and the time of a local step. Samples, exchanges,
  bytes and state must equal their closed formulas exactly;
- the compiler's count for each oracle, in operations per parameter and example;
- the formulas for federations that are too large for one machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

import jax
import numpy as np

from benchmarks import softmax
from benchmarks.cost_formulas import (
    FORMULAS,
    NUMBER,
    ORACLES,
    Formula,
    Settings,
    Size,
    operations_per_round,
)
from benchmarks.timing import Bound, conclude, interleave, print_table, wants_fast
from fedbilevel import (
    Costs,
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    InMemoryDevices,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    ShroFBO,
    SimFBO,
    UniformSample,
    run,
)
from fedbilevel.commands.formatting import format_number
from fedbilevel.data.examples import one_device
from fedbilevel.engines.costs import device_costs

# All values differ, so that a formula with a wrong variable is detected.
SETTINGS = Settings(
    local_steps=5,
    batch_size=4,
    terms=3,
    lower_rounds=2,
    lower_steps=7,
    initial_batch_size=6,
)
ENROLLED, ACTIVE = 16, 8
EXAMPLES = 32
PHONES = (10**6, 10**7, 10**8, 10**9)


def algorithms(s: Settings) -> dict[str, FederatedAlgorithm]:
    """Return all algorithms with the same settings and negligible rates."""
    series = NeumannSeries(s.terms, 1e-3)
    steps: Any = {"local_steps": s.local_steps, "batch_size": s.batch_size}
    nested: Any = {"lower_rounds": s.lower_rounds, "lower_steps": s.lower_steps}
    opening: Any = {"initial_batch_size": s.initial_batch_size}
    return {
        "LocalBSGM": LocalBSGM(1e-3, series, **steps),
        "LocalBSGVRM": LocalBSGVRM(1e-3, series, **steps, **opening),
        "LFedNest": LFedNest(1e-3, series, **steps, **nested),
        "FedNest": FedNest(1e-3, series, **steps, **nested),
        "FedBiO": FedBiO(1e-3, **steps),
        "FedBiOAcc": FedBiOAcc(1e-3, **steps, **opening),
        "SimFBO": SimFBO(1e-3, **steps),
        "ShroFBO": ShroFBO(1e-3, **steps),
    }


@dataclass
class Measurement:
    """One algorithm at one size, run round by round."""

    name: str
    features: int

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        self.devices = InMemoryDevices(
            [
                softmax.local_examples(generator, EXAMPLES, self.features)
                for _ in range(ENROLLED)
            ]
        )
        self.x = jax.numpy.full(self.features, -3.0)
        self.y = jax.numpy.zeros((softmax.CLASSES, self.features))
        self.algorithm = algorithms(SETTINGS)[self.name]
        self.rounds = run(
            softmax.problem(),
            self.algorithm,
            self.devices,
            self.x,
            self.y,
            rounds=10**9,
            participation=UniformSample(ACTIVE),
        )
        self.totals = [Costs()]

    @property
    def size(self) -> Size:
        """The sizes of x and y."""
        return Size(self.x.size, self.y.size)

    def next_round(self) -> object:
        """Run a round and record the total costs."""
        r = next(self.rounds)
        self.totals.append(r.costs)
        return jax.block_until_ready(r.server)

    def rounds_cost(self) -> list[Costs]:
        """Return the costs of each single round."""
        return [
            Costs(*(b - a for a, b in zip(*pair, strict=True)))
            for pair in pairwise(self.totals)
        ]

    def state_bytes(self) -> int:
        """Return the largest state of a device between two local steps."""
        problem = softmax.problem()
        server, private = self.algorithm.init(problem, self.x, self.y)
        data = one_device(self.devices.cohort(np.arange(1)))
        batch = SETTINGS.batch_size * NUMBER * (self.features + 1)
        key = jax.random.key(0)
        return max(
            device_costs(phase, server, private, data, key).working_bytes - batch
            for phase in self.algorithm.phases(problem)
            if phase.steps
        )


def by_formula(formula: Formula, measured: Measurement) -> tuple[Costs, Costs, int]:
    """Return the first round's costs, a later one's, and a device's state."""
    first = formula.opening(SETTINGS, measured.size).times(ACTIVE)
    later = formula.round(SETTINGS, measured.size).times(ACTIVE)
    return first, later, formula.state(measured.size)


def compare(
    formulas: Mapping[str, Formula], sizes: Sequence[int], repeats: int
) -> list[Bound]:
    """Print the table of measurements and return their bounds."""
    rows, equal = [], []
    for features in sizes:
        runs = {name: Measurement(name, features) for name in formulas}
        calls: dict[str, Callable[[], object]] = {
            name: measured.next_round for name, measured in runs.items()
        }
        seconds = interleave(calls, repeats)
        for name, measured in runs.items():
            first, *others = measured.rounds_cost()
            state = measured.state_bytes()
            expected = by_formula(formulas[name], measured)
            same = {(first, later, state) for later in others} == {expected}
            equal.append(same)
            cost = others[0]
            step = median(seconds[name]) / (ACTIVE * SETTINGS.local_steps)
            row = (cost.bytes_up, cost.bytes_down, cost.samples)
            each = [number // ACTIVE for number in row]
            time = f"{1e6 * step:.0f}"
            comparison = "equal" if same else "DIFFERS"
            rows.append(
                (*measured.size, name, *each, cost.exchanges, state, time, comparison)
            )
    head = ("m", "n", "algorithm", "bytes up", "bytes down", "samples", "exchanges")
    print_table((*head, "state bytes", "µs per step", "formula"), rows)
    return [Bound("share equal to its formula", mean(equal), 1.0, at_least=True)]


def count_operations(features: int, batch: int) -> list[Bound]:
    """Print the compiled operations of each oracle per parameter and example."""
    problem = softmax.problem()
    x = jax.numpy.full(features, -3.0)
    y = jax.numpy.ones((softmax.CLASSES, features))
    examples = softmax.local_examples(np.random.default_rng(0), batch, features).lower
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "upper_gradients": (problem.upper_gradients, ()),
        "lower_gradient": (problem.lower_gradient, ()),
        "hessian_product": (problem.hessian_product, (y,)),
        "cross_product": (problem.cross_product, (y,)),
    }
    rows, bounds = [], []
    for name, (oracle, vector) in calls.items():
        compiled = jax.jit(oracle).lower(x, y, examples, *vector).compile()
        analysis: Any = compiled.cost_analysis()
        operations = analysis["flops"] / (batch * y.size)
        rows.append((name, f"{operations:.2f}", ORACLES[name]))
        bounds.append(Bound(f"{name} operations", operations, 1.05 * ORACLES[name]))
    print_table(("oracle", "operations per parameter and example", "at most"), rows)
    return bounds


def print_extrapolation() -> None:
    """Print the costs by formula for phones, 1 % of which participate in a round."""
    settings = Settings(local_steps=10, batch_size=16, terms=10, initial_batch_size=64)
    minutes = 10
    rows = []
    for name in ("LocalBSGM", "LocalBSGVRM", "FedNest", "FedBiO"):
        for parameters in (10**6, 10**7, 10**8, 10**9):
            size = Size(1_000, parameters)
            formula = FORMULAS[name]
            up = formula.round(settings, size).bytes_up
            work = operations_per_round(name, settings, size)
            ingress = [phones // 100 * up / (60 * minutes) for phones in PHONES]
            rows.append(
                (
                    name,
                    f"{parameters:.0e}",
                    format_number(up),
                    format_number(formula.state(size)),
                    f"{up * 8 / 10e6:,.0f}",
                    f"{work / 10e9:,.1f}",
                    *map(format_number, ingress),
                )
            )
    head = ("algorithm", "n", "up B", "state B", "upload s", "compute s")
    print(
        f"Computed: m = 1,000; 1 % of the phones per round; {minutes} minutes per "
        "round; 10 Mbit/s up; 10¹⁰ operations per second."
    )
    print_table((*head, *(f"B/s in, {phones:.0e}" for phones in PHONES)), rows)


def main() -> None:
    fast = wants_fast(__doc__, "a small model only")
    bounds = compare(FORMULAS, (4,) if fast else (64, 784), repeats=1 if fast else 15)
    print()
    bounds += count_operations(features=784, batch=64)
    print()
    print_extrapolation()
    print()
    conclude(bounds)


if __name__ == "__main__":
    main()
