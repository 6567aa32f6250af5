"""What the experiments share: cells that survive an interruption, tables, slopes.

An experiment is a set of named cells, each a function that returns plain numbers. A
cell that is done is kept in `.results/`, which git ignores; a run that was interrupted
goes on with the missing ones, and a changed experiment starts over under its new
fingerprint.
"""

import argparse
import csv
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from tqdm import tqdm

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


class Arguments(NamedTuple):
    """The command line of an experiment."""

    fast: bool
    folder: Path


def arguments(description: str | None, meaning: str) -> Arguments:
    """Read the command line; the fast setting writes its results beside its cells."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fast", action="store_true", help=f"{meaning}, as in CI")
    fast = bool(parser.parse_args().fast)
    return Arguments(fast, ROOT / ".results" / "fast" if fast else RESULTS)


def run_cells(
    experiment: str, setting: Any, cells: Mapping[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Return every cell's numbers, computing those that are not kept yet.

    Args:
        experiment: its name.
        setting: whatever the numbers depend on; its text is the fingerprint.
        cells: by name, what to compute.
    """
    print_of = hashlib.sha256(repr(setting).encode()).hexdigest()[:12]
    folder = ROOT / ".results" / f"{experiment}-{print_of}"
    folder.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = {}
    bar = tqdm(cells.items(), desc=experiment, unit="cell")
    for name, compute in bar:
        bar.set_postfix_str(name)
        kept = folder / f"{name}.json"
        if not kept.exists():
            # Written whole or not at all: a half-written cell must not count as done.
            draft = kept.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(compute()))
            draft.replace(kept)
        done[name] = json.loads(kept.read_text())
    return done


def write_table(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Write a comma-separated table, numbers to four significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([short(cell) for cell in row])


def short(cell: object) -> str:
    """Return a cell as tables show it, numbers to four significant digits."""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def write_markdown(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Write a table as documentation shows it."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class Slope(NamedTuple):
    """A fitted exponent and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def fit_slope(x: Sequence[float], y: Sequence[Sequence[float]]) -> Slope:
    """Return the slope of log y on log x.

    Args:
        x: one number a group.
        y: the groups' repeated measurements; the fit is to their geometric means, and
            the interval comes from the residuals of all points (Student's t).
    """
    log_x = np.concatenate([[np.log(a)] * len(b) for a, b in zip(x, y, strict=True)])
    log_y = np.log(np.concatenate([np.asarray(b, float) for b in y]))
    fit = stats.linregress(log_x, log_y)
    width = stats.t.ppf(0.975, len(log_x) - 2) * fit.stderr
    return Slope(float(fit.slope), float(fit.slope - width), float(fit.slope + width))
