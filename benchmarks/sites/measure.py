"""Measures of contenders over seeds, and their tables.

A cell holds the results of one task and seed: which sites are bad, and for every
contender the fields of `Result` and its seconds. A row of a table is a contender's
model as it is, or fine-tuned on the trusted examples.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from benchmarks.experiment import half_width, write_markdown

TUNED = ", fine-tuned"
HEADER = [
    "contender",
    "accuracy",
    "log loss",
    "AUC of bad sites",
    "exchanges",
    "accuracy − oracle",
    "seconds",
]

Cell = Mapping[str, Any]
"""The bad sites of a task and seed, and the results by contender."""


class Row(NamedTuple):
    """Measurements of a row, one number for each seed.

    Attributes:
        accuracy: accuracy on the test examples.
        log_loss: loss on the test examples.
        auc: AUC of the scores; empty without scores or without bad sites.
        exchanges: number of exchanges.
        seconds: time of all work of the contender.
    """

    accuracy: Float[np.ndarray, "seeds"]
    log_loss: Float[np.ndarray, "seeds"]
    auc: Float[np.ndarray, "_"]
    exchanges: Float[np.ndarray, "seeds"]
    seconds: Float[np.ndarray, "seeds"]


def auc(scores: Sequence[float], bad: Bool[np.ndarray, "sites"]) -> float | None:
    """Return the chance that a bad site has a higher score than a good one.

    Equal scores count half. Without bad or without good sites there is no AUC.

    Example:
        >>> auc([0.9, 0.1, 0.2], np.array([True, False, False]))
        1.0
    """
    count = int(bad.sum())
    others = len(bad) - count
    if not count or not others:
        return None
    ranks = stats.rankdata(np.nan_to_num(np.asarray(scores, float)))
    return float((ranks[bad].sum() - count * (count + 1) / 2) / (count * others))


def rows_of_cells(cells: Sequence[Cell]) -> dict[str, Row]:
    """Return the rows of a case from the cells of its seeds.

    A contender that lacks in a cell, such as one for sites with trusted examples where
    these are at the server, has no row.
    """
    rows: dict[str, Row] = {}
    for name in cells[0]["results"]:
        results = [
            {**cell["results"][name], "bad": cell["bad"]}
            for cell in cells
            if cell["results"].get(name)
        ]
        if len(results) < len(cells):
            continue
        for prefix, suffix in (("", ""), ("tuned_", TUNED)):
            if results[0][f"{prefix}accuracy"] is not None:
                rows[name + suffix] = _row(results, prefix)
    return rows


def _row(results: Sequence[Mapping[str, Any]], prefix: str) -> Row:
    def column(name: str) -> np.ndarray:
        values = (result[name] for result in results)
        return np.array([value for value in values if value is not None], float)

    scores = ((result["scores"], result["bad"]) for result in results)
    areas = [auc(s, np.asarray(bad, bool)) for s, bad in scores if s is not None]
    return Row(
        column(f"{prefix}accuracy"),
        column(f"{prefix}log_loss"),
        np.array([area for area in areas if area is not None], float),
        column(f"{prefix}exchanges"),
        column("seconds"),
    )


def interval(values: Float[np.ndarray, "seeds"]) -> str:
    """Return a mean with its 95 % confidence interval, or the value of one seed."""
    if not len(values):
        return ""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {float(half_width(values)):.3f}"


def difference(rows: Mapping[str, Row], first: str, second: str) -> str:
    """Return the paired difference of two rows' accuracy, with its interval."""
    values = rows[first].accuracy - rows[second].accuracy
    text = interval(values)
    return text if text.startswith("-") else f"+{text}"


def strongest(rows: Mapping[str, Row], names: Sequence[str]) -> str:
    """Return the row with the highest mean accuracy among those of some contenders."""
    allowed = [row for row in rows if row.removesuffix(TUNED) in names]
    return max(allowed, key=lambda row: float(np.mean(rows[row].accuracy)))


def write_case(path: Path, cells: Sequence[Cell], oracle: str) -> None:
    """Write the table of a case, sorted by accuracy."""
    rows = rows_of_cells(cells)
    order = sorted(rows, key=lambda name: -float(np.mean(rows[name].accuracy)))
    lines = [
        [
            name,
            interval(rows[name].accuracy),
            interval(rows[name].log_loss),
            f"{np.mean(rows[name].auc):.2f}" if len(rows[name].auc) else "",
            f"{np.mean(rows[name].exchanges):,.0f}",
            difference(rows, name, oracle),
            f"{np.mean(rows[name].seconds):.1f}",
        ]
        for name in order
    ]
    write_markdown(path, HEADER, lines)


def write_overview(
    path: Path, cases: Mapping[str, Sequence[Cell]], field: str = "accuracy"
) -> None:
    """Write the means of a measurement: contenders by cases."""
    tables = {name: rows_of_cells(cells) for name, cells in cases.items()}
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows))

    def text(rows: Mapping[str, Row], name: str) -> str:
        values = getattr(rows[name], field) if name in rows else []
        return f"{np.mean(values):.3f}" if len(values) else ""

    lines = [[name, *(text(rows, name) for rows in tables.values())] for name in names]
    write_markdown(path, ["contender", *tables], lines)
