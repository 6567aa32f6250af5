"""A comparison as a table, as JSON, and in warnings."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import mean, stdev

from fedbilevel.commands.formatting import aligned, short
from fedbilevel.experiments.groups import Group
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

DEVIATION = "±: sample standard deviation over seeds."
"""What ± means in a table."""

UNTUNED = "  without tuning"
"""The row of a group's baseline: the same training with x fixed at its start."""

LEFT_OUT = "Failed seeds are left out of all means and deviations."
"""What becomes of failed seeds in a table."""


def table(groups: Sequence[Group]) -> str:
    """Return a row for each group, after the last rounds that all its seeds have.

    Below it stands its baseline without tuning, where every seed has one.

    Example:
        >>> print(table([]))
        run  seeds  rounds  samples  sent  time
    """
    ends = [last_common(group) for group in groups]
    names = list(dict.fromkeys(n for last in ends if last for n in last[0].figures))
    failed = any(group.failed for group in groups)
    counts = ["seeds", *(["failed"] if failed else [])]
    rows = [
        ["run", *counts, "rounds", "samples", "sent", "time", *map(title_of, names)]
    ]

    def values(records: Sequence[Record]) -> list[str]:
        figures = [[one.figures.get(name) for one in records] for name in names]
        return [*_costs(records), *map(_value, figures)]

    for group, last in zip(groups, ends, strict=True):
        failures = [_failed(group)] if failed else []
        rows.append([group.label, str(len(group.runs)), *failures, *values(last)])
        baselines = untuned(group)
        if baselines:
            counts = [str(len(baselines)), *([""] if failed else [])]
            rows.append([UNTUNED, *counts, *values(baselines)])
    several = any(len(last) > 1 for last in ends)
    notes = " ".join([DEVIATION] * several + [LEFT_OUT] * failed)
    return "\n".join([aligned(rows), *([notes] if notes else [])])


def as_json(groups: Sequence[Group]) -> str:
    """Return the last common record, baseline and failure of each seed, by label.

    Example:
        >>> as_json([Group("FedBiO", ())])
        '{"FedBiO": []}'
    """
    found = {}
    for group in groups:
        ends = iter(last_common(group))
        found[group.label] = [
            {
                "seed": run.experiment.seed,
                "directory": str(run.directory),
                "failure": run.failure._asdict() if run.failure else None,
                "baseline": json.loads(run.baseline.line) if run.baseline else None,
                **({} if run.failure else json.loads(next(ends).line)),
            }
            for run in group.runs
        ]
    return json.dumps(found)


def warnings(groups: Sequence[Group]) -> Iterator[str]:
    """Yield which runs failed or stopped early, and whether tasks differ.

    Example:
        >>> list(warnings([]))
        []
    """
    for group in groups:
        for run in group.runs:
            rounds = run.experiment.rounds
            if run.failure is not None:
                seed = run.experiment.seed
                yield f"{run.directory} (seed {seed}) failed, {run.failure}"
            elif run.records[-1].rounds < rounds:
                done = run.records[-1].rounds
                yield f"{run.directory} stopped after {done} of {rounds} rounds"
        seeds = Counter(run.experiment.seed for run in group.runs)
        twice = [str(seed) for seed, count in seeds.items() if count > 1]
        if twice:
            yield (
                f"{group.label} has several runs with seed {', '.join(twice)}: the "
                "same run counts more than once"
            )
        if len(group.successful) > 1 and not last_common(group):
            yield f"the seeds of {group.label} have no measured round in common"
    asked = [group.runs[0].experiment for group in groups]
    tasks = {
        repr((one.problem, one.data, one.partition, one.weight_by_size))
        for one in asked
    }
    if len(tasks) > 1:
        yield (
            "these runs differ in problem, data or partition: their losses are not of "
            "the same thing"
        )


def last_common(group: Group) -> list[Record]:
    """Return the last records that all seeds which did not fail have in common.

    Example:
        >>> last_common(Group("FedBiO", ()))
        []
    """
    by_rounds = [{one.rounds: one for one in run.records} for run in group.successful]
    if not by_rounds:
        return []
    common = set.intersection(*map(set, by_rounds))
    return [found[max(common)] for found in by_rounds] if common else []


def untuned(group: Group) -> list[Record]:
    """Return the baselines of the seeds that did not fail, if each has one.

    Example:
        >>> untuned(Group("FedBiO", ()))
        []
    """
    found = [run.baseline for run in group.successful if run.baseline is not None]
    return found if len(found) == len(group.successful) else []


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
        short(first.costs.samples),
        f"{short(first.costs.bytes)}B",
        f"{mean(one.seconds for one in last):.0f} s",
    ]


def _value(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return f"{known[0]:.4g}"
    if not all(map(isfinite, known)):
        return f"{sum(known):.4g}"  # inf or nan: there is no deviation
    return f"{mean(known):.4g} ± {stdev(known):.1g}"
