"""`fedbilevel federate FILE`: run an experiment across sites, with NVIDIA FLARE."""

import logging
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fedbilevel.commands.arguments import parse_arguments
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.progress import progress
from fedbilevel.commands.run_monitor import conclude, headline
from fedbilevel.deployment.exclusion_notices import Exclusion
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
from fedbilevel.experiments.run_directory.runs import (
    finished,
    keep,
    read_run_experiment,
    resolve_run_directory,
)
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.federation import Exchange
from fedbilevel.plurals import count_noun
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
"""Settings that may differ when a run is resumed."""

DESCRIPTION = (
    "Run an experiment file across sites that keep their data, with NVIDIA FLARE. "
    "Without federation.kit a server and sites are started on this machine. The same "
    "command resumes a stopped run."
)


def main(arguments: Sequence[str]) -> int:
    """Run an experiment file across sites, or resume its run."""
    options = parse_arguments("federate", "FILE", arguments, DESCRIPTION)
    # NVIDIA FLARE logs each lost connection; this command prints what to do about it.
    logging.getLogger().addHandler(logging.NullHandler())
    file = Path(options.subject)
    changed = with_overrides(
        read_experiment(file),
        options.options,
        f"fedbilevel federate {quote(str(file))}",
        command_options=("--json",),
    )
    # Imported late, so that --help works without NVIDIA FLARE. An error names the
    # package to install.
    import_module("fedbilevel.flare")
    changed = located(changed, Path.cwd())
    experiment, directory = resolve_run_directory(changed, file, "-federated")
    experiment = _match_run(experiment, directory)
    if finished(experiment, directory) and (directory / SOLUTION).exists():
        print(
            f"The run in {directory} is finished after "
            f"{count_noun(experiment.rounds, 'round')}. Give a larger --rounds to "
            "continue it, or another --directory to start a new run.",
            file=sys.stderr,
        )
        sites = sites_of(experiment)
        return conclude(directory, as_json=options.as_json, devices=sites)
    if isinstance(experiment.problem, CustomProblem):
        remember_problem(experiment)
        # The server builds the model again; this reports a mistake in its file early.
        model_of(experiment)
    sites = sites_of(experiment)
    with run_lock(directory), _administrator(experiment, directory) as administrator:
        code = _follow(experiment, directory, administrator, options.as_json)
    return code or conclude(directory, as_json=options.as_json, devices=sites)


def _match_run(experiment: Experiment, directory: Path) -> Experiment:
    """Return an experiment with the rates of the run in its directory, if there is one.

    Raises:
        ValueError: if that run has other settings.
    """
    if not (directory / EXPERIMENT).exists():
        return experiment
    original = read_run_experiment(directory)
    previous = with_initial_rounds(original, original)
    current = with_initial_rounds(previous, experiment)
    differing = [
        name
        for name in differences(previous, current)
        if not name.startswith(CHANGEABLE)
    ]
    if differing and not any(read_records(directory)):
        # The previous run was refused before its first evaluation: this is a new run.
        (directory / RUN).unlink(missing_ok=True)
        return experiment
    if differing:
        raise ValueError(
            f"The run in {directory} was started with other values of "
            f"{', '.join(differing[:5])}. Restore them to resume it, or give this run "
            "another --directory."
        )
    return current


@contextmanager
def _administrator(
    experiment: Experiment, directory: Path
) -> Iterator["Administrator"]:
    from fedbilevel.flare.administrator import Administrator
    from fedbilevel.flare.message_limits import message_limit
    from fedbilevel.flare.processes import stop
    from fedbilevel.flare.provisioning import provision_kits
    from fedbilevel.flare.rehearsals import rehearsal
    from fedbilevel.flare.supervision import FederationError

    kit = experiment.federation.kit
    if kit is not None:
        with Administrator(kit) as administrator:
            yield administrator
        return
    print("Starting a server and sites on this machine …", file=sys.stderr)
    sites = sites_of(experiment)
    # The run directory is locked by this command: processes that a killed command left
    # running in it can be stopped.
    model = model_of(experiment)
    limit = message_limit(model.x, model.y)
    kits = provision_kits(directory / "kits", sites, limit)
    stop(kits.server, *kits.sites.values())
    with (
        rehearsal(directory / "kits", sites, limit),
        Administrator(kits.lead) as administrator,
    ):
        try:
            yield administrator
        except FederationError as error:
            raise FederationError(
                f"{error} (For details see console.txt of each kit in "
                f"{kits.server.parent}.)"
            ) from None


def _follow(
    experiment: Experiment,
    directory: Path,
    administrator: "Administrator",
    as_json: bool,
) -> int:
    from fedbilevel.flare.job_monitor import STOP_SECONDS
    from fedbilevel.flare.supervision import Supervision

    keep(experiment, directory)
    *_, known = 0, *(record.rounds for record in read_records(directory))
    supervision = Supervision(experiment, _run_in(directory), directory, administrator)
    sites = {"sites": "connecting …"}
    reported: set[Exclusion] = set()
    display = progress(
        headline(experiment, directory), experiment.rounds, as_json, sites
    )
    tracking = track(
        trackers_of(experiment.tracking, directory),
        directory.absolute().name,
        settings_of(experiment),
        resume=known > 0,
    )
    with (
        tracking as send,
        Journal(directory, known) as journal,
        closing(supervision.events()) as events,
        interruption(
            "round", f", which is aborted after {STOP_SECONDS:.0f} seconds"
        ) as interrupted,
        display as show,
    ):
        for event in events:
            if event.rewound is not None:
                journal.rewind(event.rewound)
                *_, known = 0, *(record.rounds for record in read_records(directory))
            for record in event.records:
                journal.write(record)
                send(record)
                show(record.rounds, record.costs, record)
                known = record.rounds
                if as_json:
                    print(record.line, flush=True)
            if event.exchange is not None:
                sites["sites"] = _participation(event.exchange)
            for exclusion in _new_exclusions(event.exclusions, reported):
                print(exclusion, file=sys.stderr, flush=True)
            if event.message is not None:
                sites["sites"] = event.message
                print(event.message, file=sys.stderr, flush=True)
            if interrupted():
                supervision.stop()
    if known < experiment.rounds:
        print(
            f"Stopped after {known} of {experiment.rounds} rounds. The same command "
            f"resumes the run in {quote(str(directory))}",
            file=sys.stderr,
        )
        return interrupted()
    _print_absences(directory)
    return 0


def _run_in(directory: Path) -> str:
    file = directory / RUN
    if not file.exists():
        # The check of job files would take a longer hexadecimal text for a secret.
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text()


def _new_exclusions(
    exclusions: Iterable[Exclusion], reported: set[Exclusion]
) -> Iterator[Exclusion]:
    """Yield the exclusions that were not reported before: jobs repeat some."""
    for exclusion in exclusions:
        if exclusion not in reported:
            reported.add(exclusion)
            yield exclusion


def _print_absences(directory: Path) -> None:
    """Print how often each site was excluded, and the last reason."""
    file = directory / EXCHANGES
    if not file.exists():
        return
    exchanges = [Exchange.parse(line) for line in file.read_text().splitlines()]
    absent: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for exchange in exchanges:
        absent.update([*exchange.excluded, *exchange.skipped])
        reasons |= exchange.excluded
    for name, count in sorted(absent.items()):
        print(
            f"{name} was excluded from {count} of {len(exchanges)} exchanges; last "
            f"reason: {reasons.get(name, 'it was not contacted')}",
            file=sys.stderr,
        )


def _participation(exchange: Exchange) -> str:
    text = count_noun(len(exchange.counted), "participant")
    for name, reason in exchange.excluded.items():
        text += f"; {name}: {reason}"
    if exchange.skipped:
        text += f"; temporarily not contacted: {', '.join(exchange.skipped)}"
    return text
