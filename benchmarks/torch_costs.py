"""Cost of problems of PyTorch against code written by hand in PyTorch.

    python -m benchmarks.torch_costs

`step` is a local step of LocalBSGVRM on one device, against the same step in the style
of research code (`benchmarks/torch_loop.py`), for the backbone of a residual network as
x and its head as y, and for a softmax regression, whose tensors are so small that a
step is mostly calls of Python. `round` is a round of `TensorSimulation`, which runs all
devices at once by `vmap`, against a Python loop over devices. Both draw as many
examples and call the same losses. The last column is the time of `Simulation` with the
same losses in JAX.
"""

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks import bare, overhead, softmax, torch_loop
from benchmarks.research_loop import tensors_of
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from benchmarks.torch_models import ResidualNetwork
from fedbilevel import InMemoryDevices, run
from fedbilevel.torch import TensorSimulation, bilevel_problem

STEP_LIMIT = 1.15
ROUND_LIMIT = 3.0
VRM = 2
"""LocalBSGVRM in `benchmarks.torch_loop`."""


def residual() -> torch_loop.Problem:
    """Return the problem of a residual network's backbone and head, as two vectors."""
    torch.manual_seed(0)
    network = ResidualNetwork(16, blocks=2)
    named = dict(network.named_parameters())
    upper = [name for name in named if name.startswith("backbone")]
    lower = [name for name in named if name.startswith("head")]
    sizes = {name: value.numel() for name, value in named.items()}

    def vector(names: list[str]) -> torch.Tensor:
        return torch.cat([named[name].detach().flatten() for name in names])

    def f(x: Any, y: Any, batch: Any) -> Any:
        values = {}
        for names, numbers in ((upper, x), (lower, y)):
            parts = numbers.split([sizes[name] for name in names])
            for name, part in zip(names, parts, strict=True):
                values[name] = part.view(named[name].shape)
        images, labels = batch
        scores = functional_call(network, values, (images.view(-1, 1, 28, 28),))
        return cross_entropy(scores, labels)

    def g(x: Any, y: Any, batch: Any) -> Any:
        return f(x, y, batch) + 0.5 * (y**2).sum()

    return torch_loop.Problem(f, g, vector(upper), vector(lower))


class Case(NamedTuple):
    """A comparison.

    Attributes:
        name: name in the table.
        problem: the losses of both programs.
        devices: number of devices.
        batch: batch size.
        bound: greatest time as a multiple of the loop's, or least speed-up.
        vectorised: whether the package runs all devices at once.
    """

    name: str
    problem: torch_loop.Problem
    devices: int
    batch: int
    bound: float | None = None
    vectorised: bool = False


def cases() -> list[Case]:
    """Return all comparisons, the smallest first."""
    small = torch_loop.softmax(softmax.FEATURES)
    return [
        Case("step of softmax regression", small, 1, 32, STEP_LIMIT),
        Case("step of a residual network", residual(), 1, 32, STEP_LIMIT),
        Case("round of softmax regression", small, 8, 32, vectorised=True),
        Case("round of softmax regression", small, 64, 32, ROUND_LIMIT, True),
    ]


def package_rounds(
    case: Case, settings: bare.Settings, devices: InMemoryDevices
) -> Callable[[], object]:
    """Return a call that runs the next round of the package."""
    problem = case.problem
    iterator = run(
        bilevel_problem(problem.f, problem.g),
        overhead.algorithm(VRM, settings),
        devices,
        problem.x,
        problem.y,
        rounds=1_000_000,
        engine=TensorSimulation(case.vectorised),
    )

    def call() -> Any:
        return next(iterator).server

    call()
    return call


def measure(case: Case, repeats: int = 15) -> dict[str, list[float]]:
    """Return the seconds of rounds of the package and of the loop."""
    settings = bare.Settings(case.devices, case.batch, case.devices)
    devices = softmax.devices(case.devices)
    data = tensors_of(devices, case.devices)
    calls: dict[str, Callable[[], object]] = {
        "package": package_rounds(case, settings, devices),
        "loop": torch_loop.Loop(case.problem, settings, VRM, data).round,
    }
    if case.vectorised:
        calls["JAX"] = overhead.package_rounds(VRM, settings, devices)
    seconds = interleave(calls, repeats)
    if case.vectorised:  # A call of it is several rounds.
        seconds["JAX"] = [time / overhead.ROUNDS for time in seconds["JAX"]]
    return seconds


def main() -> None:
    """Time all cases, and compare them with their bounds."""
    fast = wants_fast(__doc__, "the smallest case only")
    rows, bounds = [], []
    for case in cases()[: 1 if fast else None]:
        seconds = measure(case)
        package, loop = (1e3 * median(seconds[k]) for k in ("package", "loop"))
        relative = ratio(seconds["package"], seconds["loop"])
        sizes = str(case.devices), str(case.batch)
        times = f"{package:.1f}", f"{loop:.1f}"
        jax = f"{1e3 * median(seconds['JAX']):.1f}" if case.vectorised else ""
        rows.append(
            (case.name, *sizes, *times, f"{relative:.2f}", f"{1 / relative:.1f}", jax)
        )
        if case.bound is not None and case.vectorised:
            bounds.append(Bound(case.name, 1 / relative, case.bound, at_least=True))
        elif case.bound is not None:
            bounds.append(Bound(case.name, relative, case.bound))
    sizes = "devices", "batch"
    times = "package ms", "loop ms"
    ratios = "package / loop", "times as fast"
    print_table(("case", *sizes, *times, *ratios, "JAX ms"), rows)
    conclude(bounds)


if __name__ == "__main__":
    main()
