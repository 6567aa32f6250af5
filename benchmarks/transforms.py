"""Cost of transforms of uploads: a round with them over the same round without.

`python -m benchmarks.transforms` times alternating calls of 5 rounds of LocalBSGM with
64 devices and batch size 32 on the softmax problem (784 × 10), and counts the bytes of
an upload.
"""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks import bare, softmax
from benchmarks.overhead import ROUNDS, algorithm
from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from fedbilevel import (
    AdaptiveClip,
    Chain,
    Clip,
    Feedback,
    GaussianNoise,
    GeometricMedian,
    InMemoryDevices,
    Quantise,
    RandomK,
    TrimmedMean,
    run,
    with_transforms,
)

CASE = (64, 32, 8)
"""Devices, batch size, and the fastest group size of the bare program."""
FAST = (8, 1, 8)
TRANSFORMS: dict[str, tuple[Any, ...]] = {
    "clip": (Clip(1.0),),
    "clip and noise": (Clip(1.0), GaussianNoise(1.0)),
    "adaptive clip and noise": (AdaptiveClip(), GaussianNoise(1.0)),
    "8 bits, feedback": (Feedback(Quantise(bits=8)),),
    "4 bits, feedback": (Feedback(Quantise(bits=4)),),
    "a quarter in 8 bits, feedback": (
        Feedback(Chain(RandomK(0.25, unbiased=False), Quantise(bits=8))),
    ),
    "trimmed mean": (TrimmedMean(0.2),),
    "geometric median": (GeometricMedian(),),
}
BOUNDS = {"clip and noise": 1.05, "8 bits, feedback": 1.10}


def rounds_of(
    inner: Any, transforms: tuple[Any, ...], devices: InMemoryDevices
) -> tuple[Callable[[], object], int]:
    """Return a call that runs the next rounds, and the bytes up of one device."""
    transformed = with_transforms(inner, *transforms) if transforms else inner
    iterator = run(
        softmax.problem(), transformed, devices, *softmax.start(), rounds=1_000_000
    )

    def call() -> None:
        for _ in range(ROUNDS):
            last = next(iterator)
        jax.block_until_ready(last.server)

    first = next(iterator)
    return call, first.costs.bytes_up // devices.device_count


def main() -> None:
    fast = wants_fast(__doc__, "8 devices and batch size 1, without bounds")
    settings = bare.Settings(*(FAST if fast else CASE))
    inner, devices = algorithm(1, settings), softmax.devices(settings.devices)
    named = {"plain": (), **TRANSFORMS}
    calls = {name: rounds_of(inner, each, devices) for name, each in named.items()}
    seconds = interleave({name: call for name, (call, _) in calls.items()})
    ratios = {name: ratio(seconds[name], seconds["plain"]) for name in named}
    plain = calls["plain"][1]
    print_table(
        ["transforms", "time / plain", "bytes up", "times fewer"],
        [
            (name, f"{ratios[name]:.3f}", f"{up:,}", f"{plain / up:.1f}")
            for name, (_, up) in calls.items()
        ],
    )
    limits = {} if fast else BOUNDS
    conclude([Bound(name, ratios[name], limit) for name, limit in limits.items()])


if __name__ == "__main__":
    main()
