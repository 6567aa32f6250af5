"""`fedbilevel compare FOLDER...`: several runs in a table and in curves."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedbilevel.experiments.choices import Tracking
from fedbilevel.experiments.folders import EXPERIMENT
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.pictures.curves import curves
from fedbilevel.tracking.records import Record, read_records


def main(arguments: Sequence[str]) -> int:
    """Compare runs.

    Example:
        >>> main.__name__
        'main'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel compare",
        description="Runs that differ in their seed alone become one line with a band.",
    )
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path)
    parser.add_argument("--figure", default="loss", help="what to draw; loss")
    parser.add_argument("--out", type=Path, default=Path("comparison.svg"))
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    given = parser.parse_args(arguments)
    runs = _grouped(given.folders)
    for label, seeds in runs.items():
        for records in seeds:
            if given.figure not in records[-1].figures:
                raise ValueError(
                    f"{label} has no figure {given.figure!r}; it has "
                    f"{', '.join(records[-1].figures)}."
                )
    curves(runs, given.figure).savefig(given.out)
    ends = {label: [one[-1] for one in seeds] for label, seeds in runs.items()}
    if given.json:
        found = {
            label: [json.loads(one.line) for one in last]
            for label, last in ends.items()
        }
        print(json.dumps(found))
        return 0
    _table(ends)
    print(f"curves: {given.out}")
    return 0


def _grouped(folders: Sequence[Path]) -> dict[str, list[list[Record]]]:
    """Return the records of runs, those that differ by their seed together."""
    groups: dict[str, list[list[Record]]] = {}
    settings: dict[str, object] = {}
    for folder in folders:
        records = list(read_records(folder))
        if not records:
            raise ValueError(f"{folder} has no records of a run.")
        asked = replace(
            read_experiment(folder / EXPERIMENT), seed=0, tracking=Tracking()
        )
        same = [label for label, other in settings.items() if other == asked]
        label = same[0] if same else folder.name
        settings.setdefault(label, asked)
        groups.setdefault(label, []).append(records)
    return groups


def _table(ends: dict[str, list[Record]]) -> None:
    names = list(dict.fromkeys(n for one in ends.values() for n in one[0].figures))
    header = ["run", "seeds", "rounds", "samples", "bytes", "seconds", *names]
    rows = [header]
    for label, last in ends.items():
        first = last[0]
        sent = first.costs.bytes_up + first.costs.bytes_down
        means = [
            sum(one.figures.get(name, float("nan")) for one in last) / len(last)
            for name in names
        ]
        counts = len(last), first.round + 1, first.costs.samples, sent
        shown = f"{first.seconds:.1f}", *(f"{mean:.4g}" for mean in means)
        rows.append([label, *map(str, counts), *shown])
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        print("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))
