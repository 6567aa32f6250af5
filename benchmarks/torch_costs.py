"""Cost of problems of PyTorch against code written by hand in PyTorch.

    python -m benchmarks.torch_costs

`step` is a local step of LocalBSGVRM on one device, for each kind of model, against the
same step in the style of research code (`benchmarks/torch_loop.py`). `round` is a round
of `TensorSimulation`, which runs all devices at once by `vmap`, against a Python loop
over devices. Both draw as many examples.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks import bare, softmax, torch_loop
from benchmarks.overhead import algorithm
from benchmarks.research_loop import torch_loop_of
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import InMemoryDevices, run
from fedbilevel.torch import TensorSimulation, bilevel_problem

STEP_LIMIT = 1.15
ROUND_LIMIT = 3.0
VRM = 2
"""LocalBSGVRM in `benchmarks.torch_loop`."""


def package_rounds(
    settings: bare.Settings, devices: InMemoryDevices, vectorised: bool
) -> Callable[[], object]:
    """Return a call that runs the next round of the package."""
    x, y = torch.full((softmax.FEATURES,), -4.0), torch.zeros(10, softmax.FEATURES)
    iterator = run(
        bilevel_problem(torch_loop.f, torch_loop.g),
        algorithm(VRM, settings),
        devices,
        x,
        y,
        rounds=1_000_000,
        engine=TensorSimulation(vectorised),
    )

    def call() -> Any:
        return next(iterator).server

    call()
    return call


def main() -> None:
    """Time all cases, and compare them with their bounds."""
    fast = wants_fast(__doc__, "the smallest case only")
    rows, bounds = [], []
    cases = ((1, 32, False), (8, 32, True), (64, 32, True))
    for count, batch, vectorised in cases[: 1 if fast else None]:
        settings = bare.Settings(count, batch, count)
        devices = softmax.devices(count)
        seconds = interleave(
            {
                "package": package_rounds(settings, devices, vectorised),
                "loop": torch_loop_of(VRM, settings, devices).round,
            },
            repeats=15,
        )
        name = f"{'round' if vectorised else 'step'} ({count}, {batch})"
        package, loop = (1e3 * median(seconds[k]) for k in ("package", "loop"))
        relative = ratio(seconds["package"], seconds["loop"])
        times = f"{package:.1f}", f"{loop:.1f}"
        rows.append((name, *times, f"{relative:.2f}", f"{1 / relative:.1f}"))
        if not vectorised:
            bounds.append(Bound(name, relative, STEP_LIMIT))
        elif count == 64:
            bounds.append(Bound(name, 1 / relative, ROUND_LIMIT, at_least=True))
    header = "case", "package ms", "loop ms", "package / loop", "times as fast"
    print_table(header, rows)
    conclude(bounds)


if __name__ == "__main__":
    main()
