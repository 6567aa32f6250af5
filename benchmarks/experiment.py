"""Shared code of the experiments: stored cells, tables, slopes.

An experiment is a set of named cells, each a function that returns plain numbers.
Finished cells are stored in `.results/`, which git ignores. An interrupted run resumes
with the missing cells, and a changed experiment starts again under its new fingerprint.
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
    """Return the parsed command line, with the directory of results."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fast", action="store_true", help=f"{meaning}, as in CI")
    fast = bool(parser.parse_args().fast)
    return Arguments(fast, results_directory(fast))


def results_directory(fast: bool) -> Path:
    """Return the directory of tables and plots; the full setting's is in the docs."""
    return cells_directory() / "fast" if fast else RESULTS


def run_cells(
    experiment: str,
    setting: Any,
    cells: Mapping[str, Callable[[], Any]],
    published: Path | None = None,
) -> dict[str, Any]:
    """Return every cell's numbers, and compute the missing ones.

    Several processes may run the same experiment: each computes cells that no other
    process is computing.

    Args:
        experiment: name of the experiment.
        setting: parameters of the numbers. The fingerprint covers setting and code.
        cells: functions that compute the cells, by name.
        published: file to which cells are written too, after each. Its cells of the
            same fingerprint are not computed again; other cells of it stay.
    """
    fingerprint = _fingerprint(repr(setting))
    directory = cells_directory() / f"{experiment}-{fingerprint}"
    directory.mkdir(parents=True, exist_ok=True)
    if published is not None and published.exists():
        stored = json.loads(published.read_text())
        for name, cell in stored["cells"].items():
            if stored["fingerprints"][name] == fingerprint:
                with FileLock(directory / f"{name}.lock"):
                    # Local cells have all digits, published ones six.
                    if not (directory / f"{name}.json").exists():
                        _write_cell(directory, name, cell)
    bar = tqdm(total=len(cells), desc=experiment, unit="cell")
    # First the cells that no process computes; then, after waiting for their locks,
    # the cells of processes that may have died.
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


def published_cells(published: Path) -> dict[str, Any]:
    """Return the published cells, whatever their fingerprint."""
    cells: dict[str, Any] = json.loads(published.read_text())["cells"]
    return cells


def _read_cell(directory: Path, name: str) -> Any:
    return json.loads((directory / f"{name}.json").read_text())


def _write_cell(directory: Path, name: str, cell: Any) -> None:
    _write_atomically(directory / f"{name}.json", json.dumps(cell))


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
        _write_atomically(path, published_text(known))


def published_text(known: Mapping[str, Any]) -> str:
    """Return the text of a file of cells: one per line, with their fingerprints."""
    parts = []
    for key in ("fingerprints", "cells"):
        items = known[key].items()
        lines = ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in items)
        parts.append(f'"{key}": {{\n{lines}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: Any) -> Any:
    """Return numbers rounded to six digits, more than any table shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _write_atomically(path: Path, text: str) -> None:
    # A partially written cell must not count as finished.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def cells_directory() -> Path:
    """Return the directory of cells: FEDBILEVEL_CELLS, by default `.results`."""
    return Path(os.environ.get("FEDBILEVEL_CELLS", ROOT / ".results"))


def _fingerprint(setting: str) -> str:
    # The fingerprint covers imported code without comments and docstrings, so that
    # editing these, or another experiment, leaves results valid.
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
    """Return a cell as text, numbers to four significant digits."""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def write_markdown(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Write a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure with reproducible bytes, and close it."""
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

    A group has a common error (such as that of a step tuned on a grid), so the interval
    comes from the residuals of the means: Student's t with two fewer degrees of freedom
    than groups.

    Args:
        x: one number per group, at least three groups.
        y: the groups' repeated measurements, finite and above zero.
    """
    if not all(np.isfinite(group).all() for group in y):
        raise ValueError(
            "fit_slope needs finite measurements, but some runs did not reach the "
            "accuracy. Allow more steps."
        )
    means = [float(np.mean(np.log(group))) for group in y]
    fit = stats.linregress(np.log(x), means)
    width = stats.t.ppf(0.975, len(means) - 2) * fit.stderr
    return Slope(float(fit.slope), float(fit.slope - width), float(fit.slope + width))


def write_slopes(path: Path, of: str, slopes: Mapping[str, Slope]) -> None:
    """Print slopes of the quantities `of`, and write them as a table."""
    for which, slope in slopes.items():
        print(f"{which}: slope of {of} {slope} (95 % interval)")
    rows = [[which, *slope] for which, slope in slopes.items()]
    write_table(path, ["which", "slope", "low", "high"], rows)
