"""Final distances from x* of runs with coded downloads, on a heterogeneous quadratic.

    python -m tests.transforms.download_distances

prints the table of `docs/how-to/uploads.md`.
"""

from typing import Any

import jax
import numpy as np

from fedbilevel import Download, FedBiO, Quantise, run, with_transforms
from fedbilevel.problems import quadratic_task, random_quadratic

BITS = None, 16, 8, 4
LENGTHS = (0.05, 4_000), (0.05, 16_000), (0.005, 40_000)


def distances(rate: float, rounds: int, bits: int | None, every: int) -> list[float]:
    """Return the distances from x* after every so many rounds.

    Args:
        rate: learning rate of FedBiO.
        rounds: number of rounds.
        bits: bits of a number in downloads; None for exact downloads.
        every: number of rounds between two distances.
    """
    quadratic = random_quadratic(devices=4, heterogeneity=0.3, seed=0)
    task, solution = quadratic_task(quadratic, examples=1), quadratic.solution()
    algorithm: Any = FedBiO(rate)
    if bits is not None:
        algorithm = with_transforms(algorithm, Download(Quantise(bits), smallest=2))
    return [
        float(np.linalg.norm(result.x - solution))
        for result in run(
            task.problem,
            algorithm,
            task.devices,
            task.x,
            task.y,
            rounds=rounds,
            every=every,
        )
    ][-(rounds // every) :]


def main() -> None:
    with jax.enable_x64(True):
        print("rate, rounds", *(bits or "exact" for bits in BITS), sep=" | ")
        for rate, rounds in LENGTHS:
            ends = [distances(rate, rounds, bits, rounds)[-1] for bits in BITS]
            print(f"{rate}, {rounds:,}", *(f"{end:.0e}" for end in ends), sep=" | ")


if __name__ == "__main__":
    main()
