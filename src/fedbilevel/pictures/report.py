"""The HTML report of a run, which needs no network."""

import ast
import html
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from fedbilevel.experiments.files.write import text_of
from fedbilevel.experiments.outcome import outcome_of, read_cause
from fedbilevel.experiments.run_directory.failures import Failure
from fedbilevel.experiments.schema import CustomProblem, Experiment, Tracking
from fedbilevel.metrics.registry import title_of
from fedbilevel.picture import Picture
from fedbilevel.plurals import count_noun
from fedbilevel.tracking.records import Record

PACKAGES = ("fedbilevel", "jax", "numpy")


def report(
    directory: Path,
    experiment: Experiment,
    records: Sequence[Record],
    pictures: Sequence[tuple[Picture, str]],
    failure: Failure | None = None,
    baseline: Record | None = None,
) -> str:
    """Return the HTML report of a run.

    Args:
        directory: run directory.
        experiment: settings of the run.
        records: records of the run, at least one.
        pictures: pictures in their order, each with the text of its SVG file.
        failure: failure of the run, if it failed.
        baseline: record of the untuned baseline, if the run has one.

    Example:
        >>> import tempfile
        >>> from fedbilevel import Costs, FedBiO
        >>> directory = Path(tempfile.mkdtemp())
        >>> records = [Record(0, 0.1, Costs(), {"loss": 1.0})]
        >>> report(directory, Experiment(FedBiO(0.1)), records, [])[:15]
        '<!doctype html>'
    """
    last = records[-1]
    state = "Finished" if last.rounds >= experiment.rounds else "Stopped early"
    outcome = outcome_of(records, cause=read_cause(directory))
    state = f"{state} after {last.rounds} of {experiment.rounds} rounds"
    if outcome.reasons:
        state = f"{state}. {' '.join(outcome.reasons)}"
    if failure is not None:
        state = f"Failed, {failure}"
    page = Template(
        (files("fedbilevel.pictures") / "report.html.txt").read_text(encoding="utf-8")
    )
    return page.substitute(
        title=html.escape(f"{directory.absolute().name}: {experiment.title}"),
        state=html.escape(state),
        purpose=html.escape(_purpose(experiment)),
        metrics=_metrics_table(records, baseline),
        costs=_costs_table(last),
        pictures="\n".join(_section(*drawing) for drawing in pictures),
        # Addresses of trackers may contain passwords, and reports are shared.
        settings=html.escape(text_of(replace(experiment, tracking=Tracking()))),
        directory=html.escape(str(directory)),
        versions=html.escape(
            ", ".join(f"{name} {version(name)}" for name in PACKAGES)
            + f", Python {platform.python_version()}"
        ),
    )


def _purpose(experiment: Experiment) -> str:
    problem = experiment.problem
    if isinstance(problem, CustomProblem):
        text = ast.get_docstring(ast.parse(problem.file.read_text(encoding="utf-8")))
        return (text or problem.file.name).splitlines()[0]
    summary = (type(problem).__doc__ or "").splitlines()[0]
    if experiment.brings_data:
        return summary
    data = experiment.data.path or experiment.data.name
    if experiment.partition.natural:
        return f"{summary} Each natural group of {data} is a device."
    if experiment.partition.by is not None:
        column = experiment.partition.by
        return f"{summary} Each value of {column} in {data} is a device."
    devices = count_noun(experiment.partition.devices, "device")
    return f"{summary} Data: {data}, split over {devices}."


def _metrics_table(records: Sequence[Record], baseline: Record | None) -> str:
    first, last = records[0], records[-1]
    rounds = count_noun(first.rounds, "round")
    begin = f"after {rounds}" if first.rounds else "at the start"
    columns = {begin: first.metrics}
    if baseline is not None:
        columns["without tuning"] = baseline.metrics
    heads = "".join(f"<td>{head}</td>" for head in columns)
    rows = [
        f"<tr><th>{html.escape(title_of(name))}</th>"
        + "".join(
            f"<td>{metrics.get(name, float('nan')):.4g}</td>"
            for metrics in columns.values()
        )
        + f"<td><strong>{value:.4g}</strong></td></tr>"
        for name, value in last.metrics.items()
    ]
    return f"<thead><tr><td></td>{heads}<td>at the end</td></tr></thead>" + "".join(
        rows
    )


def _costs_table(last: Record) -> str:
    costs = last.costs
    rows = {
        "rounds": f"{last.rounds:,}",
        "exchanges": f"{costs.exchanges:,}",
        "samples of upper losses": f"{costs.upper_samples:,}",
        "samples of lower losses": f"{costs.lower_samples:,}",
        "sent by devices": f"{costs.bytes_up / 1e6:,.2f} MB",
        "sent to devices": f"{costs.bytes_down / 1e6:,.2f} MB",
        "time": str(timedelta(seconds=round(last.seconds))),
    }
    return "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in rows.items())


def _section(picture: Picture, svg: str) -> str:
    # The XML header of an SVG file is not valid inside HTML.
    svg = svg[svg.index("<svg") :]
    return (
        f"<section><h2>{html.escape(picture.title)}</h2>"
        f"<p>{html.escape(picture.caption)}</p>{svg}</section>"
    )
