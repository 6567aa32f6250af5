"""`fedbilevel federate FILE`: an experiment across sites, carried to its end."""

import logging
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fedbilevel.commands.arguments import asked
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.commands.run_monitor import conclude, headline
from fedbilevel.experiments.auto_rounds import with_initial_rounds
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.differences import differences
from fedbilevel.experiments.federation import model_of, sites_of
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import settings_of
from fedbilevel.experiments.run import trackers_of
from fedbilevel.experiments.run_directory.layout import (
    EXCHANGES,
    EXPERIMENT,
    RUN,
    SOLUTION,
)
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.runs import asked_of, finished, keep, placed
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.federation import Exchange
from fedbilevel.tracking.delivery import track
from fedbilevel.tracking.records import Journal, read_records

if TYPE_CHECKING:
    from fedbilevel.flare.administrator import Administrator

CHANGEABLE = (
    "rounds",
    "evaluation.",
    "checkpoints.",
    "federation.timeout",
    "federation.quorum",
    "federation.straggler_factor",
    "federation.enrolment_timeout",
    "federation.evaluation_timeout",
    "federation.connection_timeout",
    "federation.attempts",
)
"""Settings that a run may be given anew when it goes on."""


def main(arguments: Sequence[str]) -> int:
    """Run an experiment file across sites; go on if that was begun before.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("federate", "FILE", arguments)
    # The software of the federation complains of each connection that it loses; what
    # is to be done about it is told by us.
    logging.getLogger().addHandler(logging.NullHandler())
    file = Path(given.subject)
    asked_for = with_overrides(
        read_experiment(file), given.options, f"fedbilevel federate {file}"
    )
    # Only now, so that --help needs no NVIDIA FLARE. An error names what to install.
    import_module("fedbilevel.flare")
    asked_for = located(asked_for, Path.cwd())
    experiment, directory = placed(asked_for, file, "-federated")
    experiment = _as_begun(experiment, directory)
    if finished(experiment, directory) and (directory / SOLUTION).exists():
        print(
            f"the run in {directory} is finished; --rounds with more than "
            f"{experiment.rounds} goes on, another --directory begins anew.",
            file=sys.stderr,
        )
        return conclude(directory, as_json=given.as_json, devices=sites_of(experiment))
    if isinstance(experiment.problem, CustomProblem):
        remember_problem(experiment)
        # The server makes it anew; a mistake in its file is told before one starts.
        model_of(experiment)
    sites = sites_of(experiment)
    with run_lock(directory), _administrator(experiment, directory) as administrator:
        code = _follow(experiment, directory, administrator, given.as_json)
    return code or conclude(directory, as_json=given.as_json, devices=sites)


def _as_begun(experiment: Experiment, directory: Path) -> Experiment:
    """Return an experiment with the rates of the run in its directory, if there is one.

    Raises:
        ValueError: if that run was asked something else.
    """
    if not (directory / EXPERIMENT).exists():
        return experiment
    asked_before = asked_of(directory)
    then = with_initial_rounds(asked_before, asked_before)
    now = with_initial_rounds(then, experiment)
    differing = [
        name for name in differences(then, now) if not name.startswith(CHANGEABLE)
    ]
    if differing and not any(read_records(directory)):
        # It was refused before anything was measured: this is another run.
        (directory / RUN).unlink(missing_ok=True)
        return experiment
    if differing:
        raise ValueError(
            f"the run in {directory} was begun with another {', '.join(differing[:5])}; "
            "give this one another --directory."
        )
    return now


@contextmanager
def _administrator(
    experiment: Experiment, directory: Path
) -> Iterator["Administrator"]:
    from fedbilevel.flare.administrator import Administrator
    from fedbilevel.flare.message_limits import message_limit
    from fedbilevel.flare.processes import stop
    from fedbilevel.flare.provisioning import provisioned
    from fedbilevel.flare.rehearsals import rehearsal
    from fedbilevel.flare.supervision import FederationError

    kit = experiment.federation.kit
    if kit is not None:
        with Administrator(kit) as administrator:
            yield administrator
        return
    print("starting a server and sites on this machine …", file=sys.stderr)
    sites = sites_of(experiment)
    # The directory is ours: what a killed command has left in it is ended.
    model = model_of(experiment)
    limit = message_limit(model.x, model.y)
    kits = provisioned(directory / "kits", sites, limit)
    stop(kits.server, *kits.sites.values())
    with (
        rehearsal(directory / "kits", sites, limit),
        Administrator(kits.lead) as administrator,
    ):
        try:
            yield administrator
        except FederationError as error:
            raise FederationError(
                f"{error} (More is in console.txt of each kit in {kits.server.parent}.)"
            ) from None


def _follow(
    experiment: Experiment,
    directory: Path,
    administrator: "Administrator",
    as_json: bool,
) -> int:
    from fedbilevel.flare.supervision import Supervision

    keep(experiment, directory)
    *_, known = 0, *(record.rounds for record in read_records(directory))
    supervision = Supervision(experiment, _run_in(directory), directory, administrator)
    sites = {"sites": "connecting …"}
    named: set[str] = set()
    shown = progress(headline(experiment, directory), experiment.rounds, as_json, sites)
    tracking = track(
        trackers_of(experiment.tracking, directory),
        directory.absolute().name,
        settings_of(experiment),
        resume=known > 0,
    )
    with (
        tracking as tell_trackers,
        Journal(directory, known) as journal,
        closing(supervision.news()) as all_news,
        interruption() as interrupted,
        shown as show,
    ):
        for news in all_news:
            if news.rewound is not None:
                journal.rewind(news.rewound)
                *_, known = 0, *(record.rounds for record in read_records(directory))
            for record in news.records:
                journal.write(record)
                tell_trackers(record)
                show(record.rounds, record.costs, record)
                known = record.rounds
                if as_json:
                    print(record.line, flush=True)
            if news.exchange is not None:
                sites["sites"] = _words(news.exchange)
                for sentence in _first_left_out(news.exchange, named):
                    print(sentence, file=sys.stderr, flush=True)
            if news.words is not None:
                sites["sites"] = news.words
                print(news.words, file=sys.stderr, flush=True)
            if interrupted():
                supervision.stop()
    if known < experiment.rounds:
        print(
            f"stopped after {known} of {experiment.rounds} rounds; the same command "
            f"goes on: it is in {quote(str(directory))}",
            file=sys.stderr,
        )
        return interrupted()
    _say_absences(directory)
    return 0


def _run_in(directory: Path) -> str:
    file = directory / RUN
    if not file.exists():
        # Short, or it is taken for a secret that a job gives away.
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text()


def _first_left_out(exchange: Exchange, named: set[str]) -> Iterator[str]:
    """Yield a sentence for each site that is left out and was not named before."""
    for name, why in exchange.left_out.items():
        if name not in named:
            named.add(name)
            yield f"round {exchange.round_number}: without {name}: {why}"


def _say_absences(directory: Path) -> None:
    """Say whose uploads did not count to the end, and why."""
    file = directory / EXCHANGES
    if not file.exists():
        return
    exchanges = [Exchange.parse(line) for line in file.read_text().splitlines()]
    absent: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for one in exchanges:
        absent.update([*one.left_out, *one.skipped])
        reasons |= one.left_out
    for name, count in sorted(absent.items()):
        print(
            f"{name} did not count in {count} of {len(exchanges)} exchanges; the last "
            f"reason: {reasons.get(name, 'it was not asked')}",
            file=sys.stderr,
        )


def _words(exchange: Exchange) -> str:
    said = f"{len(exchange.counted)} took part"
    for name, why in exchange.left_out.items():
        said += f"; {name}: {why}"
    if exchange.skipped:
        said += f"; not asked for a while: {', '.join(exchange.skipped)}"
    return said
