"""`fedbilevel compare RUN...`: several runs in a table and in curves."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from fedbilevel.commands.following import follow
from fedbilevel.commands.words import aligned, short
from fedbilevel.experiments.choices import Experiment, Tracking
from fedbilevel.experiments.folders import EXCHANGES, has_checkpoints
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.experiments.runs import asked_of, finished, placed, read_run
from fedbilevel.pictures.curves import curves
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of


def main(arguments: Sequence[str]) -> int:
    """Compare runs; make those that are missing.

    Example:
        >>> main.__name__
        'main'
    """
    given = _parser().parse_args(arguments)
    if given.seeds < 1:
        raise ValueError(f"--seeds: give at least 1, not {given.seeds}.")
    folders: list[Path] = []
    for subject in given.runs:
        made, code = _folders_of(subject, given.seeds, given.json)
        if code:
            return code
        folders += made
    runs = _grouped(folders)
    figure = _figure(runs, given.figure)
    curves(runs, figure).savefig(given.out)
    ends = {label: _last_common(seeds) for label, seeds in runs.items()}
    if given.json:
        found = {
            label: [json.loads(one.line) for one in last]
            for label, last in ends.items()
        }
        print(json.dumps(found))
        return 0
    print(_table(ends))
    print(f"curves of the {title_of(figure)}: {given.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedbilevel compare",
        description="Compare runs by their folders, or experiments by their files: "
        "those that were not run yet are run first. Runs that differ in their seed "
        "alone become one line with a band.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="a folder or a file"
    )
    parser.add_argument(
        "--figure",
        help="what to draw: loss, training_loss, a metric's name, or, where "
        "stationarity was measured, hypergradient or lower_error; by default the first "
        "that all runs have",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each experiment file; 1"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("comparison.svg"),
        help="the picture, of any format that matplotlib knows; comparison.svg",
    )
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser


def _folders_of(subject: Path, seeds: int, as_json: bool) -> tuple[list[Path], int]:
    """Return the folders of a subject's runs, after making what is missing."""
    if subject.is_dir():
        return [subject], 0
    asked = read_experiment(subject)
    folders: list[Path] = []
    for seed in range(asked.seed, asked.seed + seeds):
        suffix = f"-seed-{seed}" if seed != asked.seed else ""
        experiment, folder = placed(replace(asked, seed=seed), subject, suffix)
        if has_checkpoints(folder) and asked_of(folder) != experiment:
            raise ValueError(
                f"{folder} was run with other settings than {subject} has now; "
                f"compare {folder} itself, or remove it to run {subject} anew."
            )
        if not finished(experiment, folder):
            print(f"running {subject} with seed {seed}", file=sys.stderr)
            code = follow(experiment, folder, goes_on=True, quiet=as_json)
            if code:
                return folders, code
        folders.append(folder)
    return folders, 0


def _figure(runs: Mapping[str, Sequence[Sequence[Record]]], asked: str | None) -> str:
    """Return the figure to draw: the one asked for, or the first that all runs have."""
    named = [(label, one[-1].figures) for label, seeds in runs.items() for one in seeds]
    for label, known in named:
        if asked is not None and asked not in known:
            raise ValueError(
                f"{label} has no figure {asked!r}; it has {', '.join(known)}."
            )
    common = [one for one in named[0][1] if all(one in known for _, known in named)]
    if not common:
        raise ValueError("these runs have no figure in common; name two that have.")
    return asked or common[0]


def _grouped(folders: Sequence[Path]) -> dict[str, list[list[Record]]]:
    """Return the records of runs, those that differ by their seed together."""
    groups: dict[str, list[list[Record]]] = {}
    settings: dict[str, tuple[Experiment, bool]] = {}
    for folder in folders:
        asked, records = read_run(folder)
        if records[-1].rounds < asked.rounds:
            print(
                f"{folder} stopped after {records[-1].rounds} of {asked.rounds} rounds",
                file=sys.stderr,
            )
        asked = replace(asked, seed=0, tracking=Tracking())
        # A run across sites is another than its simulation.
        kind = asked, (folder / EXCHANGES).exists()
        same = [label for label, other in settings.items() if other == kind]
        label = same[0] if same else _label(folder.absolute().name, asked)
        if not same and label in settings:
            label = _label(str(folder), asked)
        settings.setdefault(label, kind)
        groups.setdefault(label, []).append(records)
    _warn_of_others(asked for asked, _ in settings.values())
    return groups


def _warn_of_others(settings: Iterable[Experiment]) -> None:
    tasks = {
        repr((one.problem, one.data, one.partition, one.weigh_by_size))
        for one in settings
    }
    if len(tasks) > 1:
        print(
            "these runs differ in problem, data or partition: their losses are not of "
            "the same thing",
            file=sys.stderr,
        )


def _last_common(seeds: Sequence[Sequence[Record]]) -> list[Record]:
    """Return the last records that all seeds have after the same rounds."""
    by_rounds = [{one.rounds: one for one in records} for records in seeds]
    last = max(set.intersection(*map(set, by_rounds)))
    return [found[last] for found in by_rounds]


def _label(name: str, asked: Experiment) -> str:
    algorithm = type(asked.algorithm).__name__
    return name if algorithm in name else f"{name} ({algorithm})"


def _table(ends: dict[str, list[Record]]) -> str:
    names = list(dict.fromkeys(n for one in ends.values() for n in one[0].figures))
    header = ["run", "seeds", "rounds", "samples", "sent", "time"]
    rows = [[*header, *map(title_of, names)]]
    for label, last in ends.items():
        first = last[0]
        rows.append(
            [
                label,
                str(len(last)),
                str(first.rounds),
                short(first.costs.samples),
                f"{short(first.costs.bytes)}B",
                f"{mean(one.seconds for one in last):.0f} s",
                *(_value([one.figures.get(name) for one in last]) for name in names),
            ]
        )
    return aligned(rows)


def _value(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return f"{known[0]:.4g}"
    return f"{mean(known):.4g} ± {stdev(known):.1g}"
