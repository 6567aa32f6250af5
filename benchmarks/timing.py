"""Timing by ratio: candidates alternate, so that a busy machine slows all equally."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

REPEATS = 15


class Bound(NamedTuple):
    """A measured value and its bound."""

    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """True if the value satisfies its bound."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def wants_fast(description: str | None, meaning: str) -> bool:
    """Parse the command line, and return whether it has `--fast`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fast", action="store_true", help=f"{meaning}, as in CI")
    return bool(parser.parse_args().fast)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int = REPEATS,
    rehearse: bool = False,
) -> dict[str, list[float]]:
    """Return the seconds of each candidate's calls, alternating, after a warm-up.

    A call must return only when its work is finished.

    Args:
        candidates: calls by name.
        repeats: number of timed calls of each candidate.
        rehearse: whether each candidate is called once more before each timed call, so
            that none finds the caches and the free memory that another leaves behind.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(-2, repeats):
        for name, call in candidates.items():
            if rehearse:
                call()
            began = time.perf_counter()
            call()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the median of the ratios of consecutive calls."""
    return median(a / b for a, b in zip(numerator, denominator, strict=True))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        line = "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True))
        print(line, flush=True)


def conclude(bounds: Sequence[Bound]) -> None:
    """Print the values on the last line, and exit with 1 if a bound is missed."""
    print(
        " · ".join(
            f"{b.name} {b.value:.3g} ({'≥' if b.at_least else '≤'} {b.limit:g}"
            f"{'' if b.is_met else ', MISSED'})"
            for b in bounds
        )
    )
    sys.exit(0 if all(b.is_met for b in bounds) else 1)
