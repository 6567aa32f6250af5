"""Table, JSON and warnings of a comparison."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from shlex import quote
from statistics import mean, stdev
from typing import Any

from fedbilevel.commands.formatting import format_number, format_table
from fedbilevel.experiments.differences import differences, format_differences
from fedbilevel.experiments.groups import Group
from fedbilevel.metrics.registry import title_of
from fedbilevel.tracking.records import Record

DEVIATION = "±: sample standard deviation over seeds."
"""Explanation of ± below a table."""

UNTUNED = "  without tuning"
"""Label of a baseline: the same training with x fixed at its initial value."""

TASK = ("problem", "data", "partition", "weight_by_size")
"""Settings that change the losses, so that losses cannot be compared."""

EXCLUDED = "Failed seeds are excluded from all means and deviations."
"""Explanation of failed seeds below a table."""


def table(groups: Sequence[Group]) -> str:
    """Return a table with a row for each group, at its last common round.

    The next row is its baseline without tuning, if every seed has one.

    Example:
        >>> print(table([]))
        run  seeds  rounds  samples  sent  time
    """
    ends = [last_common(group) for group in groups]
    names = list(dict.fromkeys(n for last in ends if last for n in last[0].metrics))
    failed = any(group.failed for group in groups)
    counts = ["seeds", *(["failed"] if failed else [])]
    rows = [
        ["run", *counts, "rounds", "samples", "sent", "time", *map(title_of, names)]
    ]

    def values(records: Sequence[Record]) -> list[str]:
        columns = [[record.metrics.get(name) for record in records] for name in names]
        return [*_costs(records), *map(_value, columns)]

    for group, last in zip(groups, ends, strict=True):
        failures = [_failed(group)] if failed else []
        rows.append([group.label, str(len(group.runs)), *failures, *values(last)])
        baselines = untuned(group)
        if baselines:
            counts = [str(len(baselines)), *([""] if failed else [])]
            rows.append([UNTUNED, *counts, *values(baselines)])
    several = any(len(last) > 1 for last in ends)
    notes = " ".join([DEVIATION] * several + [EXCLUDED] * failed)
    return "\n".join([format_table(rows), *([notes] if notes else [])])


def as_json(groups: Sequence[Group]) -> str:
    """Return the last common record, baseline and failure of each seed, by label.

    Example:
        >>> as_json([Group("FedBiO", ())])
        '{"FedBiO": []}'
    """
    content = {}
    for group in groups:
        ends = iter(last_common(group))
        content[group.label] = [
            {
                "seed": run.experiment.seed,
                "directory": str(run.directory),
                "failure": run.failure._asdict() if run.failure else None,
                "baseline": json.loads(run.baseline.line) if run.baseline else None,
                **({} if run.failure else json.loads(next(ends).line)),
            }
            for run in group.runs
        ]
    return json.dumps(content)


def warnings(groups: Sequence[Group]) -> Iterator[str]:
    """Yield warnings of failed and unfinished runs, and of different tasks.

    Example:
        >>> list(warnings([]))
        []
    """
    for group in groups:
        for run in group.runs:
            rounds = run.experiment.rounds
            if run.failure is not None:
                seed = run.experiment.seed
                yield f"The run in {run.directory} (seed {seed}) failed, {run.failure}"
            elif run.records[-1].rounds < rounds:
                finished = run.records[-1].rounds
                yield (
                    f"The run in {run.directory} stopped after {finished} of {rounds} "
                    f"rounds. To finish it: fedbilevel resume "
                    f"{quote(str(run.directory))}"
                )
        seeds = Counter(run.experiment.seed for run in group.runs)
        repeated = [str(seed) for seed, count in seeds.items() if count > 1]
        if repeated:
            yield (
                f"{group.label} has several runs with seed {', '.join(repeated)}, "
                "which bias its mean. Remove duplicates."
            )
        if len(group.successful) > 1 and not last_common(group):
            yield (
                f"The seeds of {group.label} were never evaluated at the same round, "
                "so they have no mean. Use the same evaluation.every."
            )
    for group in groups[1:]:
        different = _task_differences(groups[0], group)
        if different:
            yield (
                f"The losses of {groups[0].label} and {group.label} cannot be "
                "compared, because the tasks differ (first → second): "
                f"{format_differences(different)}. Run both with the same values."
            )


def last_common(group: Group) -> list[Record]:
    """Return the records of the successful seeds at their last common round.

    Example:
        >>> last_common(Group("FedBiO", ()))
        []
    """
    by_rounds = [
        {record.rounds: record for record in run.records} for run in group.successful
    ]
    if not by_rounds:
        return []
    common = set.intersection(*map(set, by_rounds))
    return [records[max(common)] for records in by_rounds] if common else []


def untuned(group: Group) -> list[Record]:
    """Return the baselines of the successful seeds; none if a seed has no baseline.

    Example:
        >>> untuned(Group("FedBiO", ()))
        []
    """
    records = [run.baseline for run in group.successful if run.baseline is not None]
    return records if len(records) == len(group.successful) else []


def _task_differences(first: Group, second: Group) -> dict[str, tuple[Any, Any]]:
    """Return the settings of the task that differ, with both values."""
    experiments = (group.runs[0].experiment for group in (first, second))
    return {
        name: values
        for name, values in differences(*experiments).items()
        if name.partition(".")[0] in TASK
    }


def _failed(group: Group) -> str:
    seeds = [str(run.experiment.seed) for run in group.failed]
    if not seeds:
        return "0"
    return f"{len(seeds)} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})"


def _costs(last: Sequence[Record]) -> list[str]:
    if not last:
        return ["–"] * 4
    first = last[0]
    return [
        str(first.rounds),
        format_number(first.costs.samples),
        f"{format_number(first.costs.bytes)}B",
        _seconds(mean(record.seconds for record in last)),
    ]


def _seconds(seconds: float) -> str:
    # A baseline reuses the compiled program of its run, and may take less than 1 s.
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"


def _value(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return f"{known[0]:.4g}"
    if not all(map(isfinite, known)):
        return f"{sum(known):.4g}"  # inf or nan has no deviation
    return f"{mean(known):.4g} ± {stdev(known):.1g}"
