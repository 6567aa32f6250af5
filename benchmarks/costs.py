"""What a round costs, measured and by formula, and what it would cost at any size.

`python -m benchmarks.costs` prints

- for every algorithm and two sizes of model, what a round cost each device as `Costs`
  counted it, the state that a device held, and the time of a local step. Samples,
  exchanges, bytes and state must equal their closed formulas to the last unit;
- what the compiler counts for each oracle, in operations a parameter and example;
- the formulas, computed beyond what one machine can run.
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
    operations_a_round,
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

# All different, so that none can stand for another in a formula.
SETTINGS = Settings(
    local_steps=5,
    batch_size=4,
    terms=3,
    lower_rounds=2,
    lower_steps=7,
    opening_batch_size=6,
)
ENROLLED, ACTIVE = 16, 8
EXAMPLES = 32
PHONES = (10**6, 10**7, 10**8, 10**9)


def algorithms(s: Settings) -> dict[str, FederatedAlgorithm]:
    """Return all of them with the same settings, and rates too small to matter."""
    series = NeumannSeries(s.terms, 1e-3)
    steps: Any = {"local_steps": s.local_steps, "batch_size": s.batch_size}
    nested: Any = {"lower_rounds": s.lower_rounds, "lower_steps": s.lower_steps}
    opening: Any = {"opening_batch_size": s.opening_batch_size}
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
class Measured:
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
        self.spent = [Costs()]

    @property
    def size(self) -> Size:
        """The sizes of x and y."""
        return Size(self.x.size, self.y.size)

    def next_round(self) -> object:
        """Run a round and remember what had been spent by then."""
        done = next(self.rounds)
        self.spent.append(done.costs)
        return jax.block_until_ready(done.server)

    def rounds_cost(self) -> list[Costs]:
        """Return what each round cost by itself."""
        return [
            Costs(*(b - a for a, b in zip(*pair, strict=True)))
            for pair in pairwise(self.spent)
        ]

    def state_bytes(self) -> int:
        """Return the most that a device holds between two local steps."""
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


def by_formula(formula: Formula, measured: Measured) -> tuple[Costs, Costs, int]:
    """Return the first round's costs, a later one's, and a device's state."""
    first = formula.opening(SETTINGS, measured.size).times(ACTIVE)
    later = formula.round(SETTINGS, measured.size).times(ACTIVE)
    return first, later, formula.state(measured.size)


def compare(
    formulas: Mapping[str, Formula], sizes: Sequence[int], repeats: int
) -> list[Bound]:
    """Print the table of what was measured and return the bounds on it."""
    rows, equal = [], []
    for features in sizes:
        runs = {name: Measured(name, features) for name in formulas}
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
            verdict = "equal" if same else "DIFFERS"
            rows.append(
                (*measured.size, name, *each, cost.exchanges, state, time, verdict)
            )
    head = ("m", "n", "algorithm", "bytes up", "bytes down", "samples", "exchanges")
    print_table((*head, "state bytes", "µs a step", "formula"), rows)
    return [Bound("share equal to its formula", mean(equal), 1.0, at_least=True)]


def count_operations(features: int, batch: int) -> list[Bound]:
    """Print operations a parameter and example of each oracle, as compiled."""
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
        counted: Any = compiled.cost_analysis()
        operations = counted["flops"] / (batch * y.size)
        rows.append((name, f"{operations:.2f}", ORACLES[name]))
        bounds.append(Bound(f"{name} operations", operations, 1.05 * ORACLES[name]))
    print_table(("oracle", "operations a parameter and example", "rule: at most"), rows)
    return bounds


def beyond() -> None:
    """Print what formulas give for phones, 1 % of which take part in a round."""
    settings = Settings(local_steps=10, batch_size=16, terms=10, opening_batch_size=64)
    minutes = 10
    rows = []
    for name in ("LocalBSGM", "LocalBSGVRM", "FedNest", "FedBiO"):
        for parameters in (10**6, 10**7, 10**8, 10**9):
            size = Size(1_000, parameters)
            formula = FORMULAS[name]
            up = formula.round(settings, size).bytes_up
            work = operations_a_round(name, settings, size)
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
        f"Computed: m = 1,000; 1 % of the phones a round; {minutes} minutes a round; "
        "10 Mbit/s up; 10¹⁰ operations a second."
    )
    print_table((*head, *(f"B/s in, {phones:.0e}" for phones in PHONES)), rows)


def main() -> None:
    fast = wants_fast(__doc__, "a small model alone")
    bounds = compare(FORMULAS, (4,) if fast else (64, 784), repeats=1 if fast else 15)
    print()
    bounds += count_operations(features=784, batch=64)
    print()
    beyond()
    print()
    conclude(bounds)


if __name__ == "__main__":
    main()
