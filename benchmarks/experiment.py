"""What the experiments share: cells that survive an interruption, tables, slopes.

An experiment is a set of named cells, each a function that returns plain numbers. A
cell that is done is kept in `.results/`, which git ignores; a run that was interrupted
goes on with the missing ones, and a changed experiment starts over under its new
fingerprint.
"""

import argparse
import ast
import csv
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from filelock import FileLock, Timeout
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import stats
from tqdm import tqdm

mpl.use("Agg")

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


class Arguments(NamedTuple):
    """The command line of an experiment."""

    fast: bool
    directory: Path


def arguments(description: str | None, meaning: str) -> Arguments:
    """Read the command line; the fast setting writes its results beside its cells."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fast", action="store_true", help=f"{meaning}, as in CI")
    fast = bool(parser.parse_args().fast)
    return Arguments(fast, results_directory(fast))


def results_directory(fast: bool) -> Path:
    """Return where tables and figures go: documentation shows the full setting's."""
    return cells_directory() / "fast" if fast else RESULTS


def run_cells(
    experiment: str,
    setting: Any,
    cells: Mapping[str, Callable[[], Any]],
    published: Path | None = None,
) -> dict[str, Any]:
    """Return every cell's numbers, computing those that are not kept yet.

    Several processes may run the same: each takes cells that no other is computing.

    Args:
        experiment: its name.
        setting: what the numbers depend on besides the code. Both are fingerprinted.
        cells: by name, what to compute.
        published: where cells are written too, after each. What it has of the same
            fingerprint is not computed again; what this call does not compute stays.
    """
    fingerprint = _fingerprint(repr(setting))
    directory = cells_directory() / f"{experiment}-{fingerprint}"
    directory.mkdir(parents=True, exist_ok=True)
    if published is not None and published.exists():
        found = json.loads(published.read_text())
        for name, cell in found["cells"].items():
            if found["fingerprints"][name] == fingerprint:
                with FileLock(directory / f"{name}.lock"):
                    # Those here have all digits.
                    if not (directory / f"{name}.json").exists():
                        _write_cell(directory, name, cell)
    bar = tqdm(total=len(cells), desc=experiment, unit="cell")
    # First what nobody is at; then, waiting, what others may have died over.
    for wait in (0, -1):
        for name, compute in cells.items():
            with suppress(Timeout), FileLock(directory / f"{name}.lock", timeout=wait):
                if not (directory / f"{name}.json").exists():
                    bar.set_postfix_str(name)
                    _write_cell(directory, name, compute())
                    if published is not None:
                        _publish(published, fingerprint, directory, cells)
            bar.update(sum((directory / f"{n}.json").exists() for n in cells) - bar.n)
    bar.close()
    return {name: _read_cell(directory, name) for name in cells}


def kept_cells(published: Path) -> dict[str, Any]:
    """Return the cells that were published, whatever the code is by now."""
    found: dict[str, Any] = json.loads(published.read_text())["cells"]
    return found


def _read_cell(directory: Path, name: str) -> Any:
    return json.loads((directory / f"{name}.json").read_text())


def _write_cell(directory: Path, name: str, cell: Any) -> None:
    _write_whole(directory / f"{name}.json", json.dumps(cell))


def _publish(
    path: Path, fingerprint: str, directory: Path, cells: Mapping[str, Any]
) -> None:
    with FileLock(directory / "published.lock"):
        known: dict[str, Any] = {"fingerprints": {}, "cells": {}}
        if path.exists():
            known = json.loads(path.read_text())
        for name in cells:
            if (directory / f"{name}.json").exists():
                known["cells"][name] = _rounded(_read_cell(directory, name))
                known["fingerprints"][name] = fingerprint
        _write_whole(path, published_text(known))


def published_text(known: Mapping[str, Any]) -> str:
    """Return a file of cells: one a line, and the fingerprint of each."""
    parts = []
    for key in ("fingerprints", "cells"):
        held = known[key].items()
        lines = ",\n".join(f'"{name}": {json.dumps(one)}' for name, one in held)
        parts.append(f'"{key}": {{\n{lines}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: Any) -> Any:
    """Return numbers to six digits, which no table shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _write_whole(path: Path, text: str) -> None:
    # Whole or not at all: a half-written cell must not count as done.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def cells_directory() -> Path:
    """Return where cells are kept: `.results`, or what FEDBILEVEL_CELLS names."""
    return Path(os.environ.get("FEDBILEVEL_CELLS", ROOT / ".results"))


def _fingerprint(setting: str) -> str:
    # Of the code that was imported, as it runs: a better comment or docstring, or
    # another experiment, leaves results valid.
    digest = hashlib.sha256(setting.encode())
    files = {getattr(module, "__file__", None) for module in sys.modules.values()}
    roots = ROOT / "src", ROOT / "benchmarks"
    paths = [Path(file) for file in files if file]
    for path in sorted(p for p in paths if any(p.is_relative_to(r) for r in roots)):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:12]


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


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes whenever the same is drawn, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def half_width(values: np.ndarray) -> np.ndarray:
    """Return the half-width of the mean's 95 % confidence interval, over axis 0."""
    count = len(values)
    quantile = stats.t.ppf(0.975, count - 1)
    return np.asarray(quantile * np.std(values, axis=0, ddof=1) / np.sqrt(count))


class Slope(NamedTuple):
    """A fitted exponent and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def fit_slope(x: Sequence[float], y: Sequence[Sequence[float]]) -> Slope:
    """Return the slope of log y on log x, fitted to the groups' geometric means.

    What a group has in common (a step tuned on a grid) is an error of its own, so the
    interval comes from the means' residuals: Student's t with two fewer degrees of
    freedom than groups.

    Args:
        x: one number a group, at least three.
        y: the groups' repeated measurements, finite and above zero.
    """
    if not all(np.isfinite(group).all() for group in y):
        raise ValueError("a slope needs finite measurements; some runs did not arrive.")
    means = [float(np.mean(np.log(group))) for group in y]
    fit = stats.linregress(np.log(x), means)
    width = stats.t.ppf(0.975, len(means) - 2) * fit.stderr
    return Slope(float(fit.slope), float(fit.slope - width), float(fit.slope + width))


def write_slopes(path: Path, of: str, slopes: Mapping[str, Slope]) -> None:
    """Print slopes and write them as a table; `of` says what of."""
    for which, slope in slopes.items():
        print(f"{which}: slope of {of} {slope} (95 % interval)")
    rows = [[which, *slope] for which, slope in slopes.items()]
    write_table(path, ["which", "slope", "low", "high"], rows)
