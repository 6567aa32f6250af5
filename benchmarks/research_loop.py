"""Speed-up of a round over research code.

`python -m benchmarks.research_loop` compares LocalBSGVRM with the same algorithm as a
Python loop over devices with PyTorch autograd (`benchmarks/torch_loop.py`).
"""

from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import bare, softmax, torch_loop
from benchmarks.overhead import ROUNDS, package_rounds
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import InMemoryDevices

CASES = ((8, 1, 30.0), (8, 32, 8.0), (64, 32, 7.0))
"""Devices, batch size, and the smallest accepted speed-up."""


def tensors_of(devices: InMemoryDevices, count: int) -> list[Any]:
    """Return the upper and lower examples of each device as tensors."""
    cohort = devices.cohort(np.arange(count))

    def tensors(device: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        levels = []
        for level in cohort:
            rows = slice(
                level.offset[device], level.offset[device] + level.size[device]
            )
            features, labels = (np.array(array[rows]) for array in level.arrays)
            levels.append((torch.tensor(features), torch.tensor(labels).long()))
        return levels

    return [tensors(device) for device in range(count)]


def torch_loop_of(
    number: int, settings: bare.Settings, devices: InMemoryDevices
) -> torch_loop.Loop:
    """Return the research loop on the same data."""
    data = tensors_of(devices, settings.devices)
    problem = torch_loop.softmax(data[0][0][0].shape[1])
    return torch_loop.Loop(problem, settings, number, data)


def main() -> None:
    fast = wants_fast(__doc__, "the smallest case only")
    rows, bounds = [], []
    for count, batch, limit in CASES[: 1 if fast else None]:
        settings = bare.Settings(count, batch, count)
        devices = softmax.devices(count)
        seconds = interleave(
            {
                "package": package_rounds(2, settings, devices),
                "loop": torch_loop_of(2, settings, devices).round,
            },
            repeats=7,
        )
        # A call of the package runs several rounds, a call of the loop a single round.
        speedup = ROUNDS * ratio(seconds["loop"], seconds["package"])
        package, loop = (1e3 * median(seconds[k]) for k in ("package", "loop"))
        times = f"{package / ROUNDS:.1f}", f"{loop:.1f}"
        rows.append((count, batch, *times, f"{speedup:.1f}"))
        bounds.append(Bound(f"({count},{batch})", speedup, limit, at_least=True))
    print_table(("devices", "batch", "package ms", "loop ms", "times as fast"), rows)
    conclude(bounds)


if __name__ == "__main__":
    main()
