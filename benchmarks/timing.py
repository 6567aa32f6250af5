"""Timing by ratio: candidates take turns, so that a noisy machine slows all alike."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

REPEATS = 15


class Bound(NamedTuple):
    """A figure and the bound it must keep."""

    name: str
    figure: float
    limit: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


def wants_fast(description: str | None, meaning: str) -> bool:
    """Read the command line: whether the setting that CI runs was asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fast", action="store_true", help=f"{meaning}, as in CI")
    return bool(parser.parse_args().fast)


def interleave(
    candidates: Mapping[str, Callable[[], object]], repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Return the seconds of each candidate's calls, taken in turns after a warm-up.

    A call must return only when its work is done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(-2, repeats):
        for name, call in candidates.items():
            began = time.perf_counter()
            call()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the median of the ratios of calls made side by side."""
    return median(a / b for a, b in zip(numerator, denominator, strict=True))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        line = "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True))
        print(line, flush=True)


def conclude(bounds: Sequence[Bound]) -> None:
    """Print the figures on the last line and leave with 1 if a bound is missed."""
    print(
        " · ".join(
            f"{b.name} {b.figure:.3g} ({'≥' if b.at_least else '≤'} {b.limit:g}"
            f"{'' if b.kept else ', MISSED'})"
            for b in bounds
        )
    )
    sys.exit(0 if all(b.kept for b in bounds) else 1)
