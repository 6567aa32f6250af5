"""One bad site stops no run, with separate processes that misbehave."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbilevel.experiments.outcome import BAD
from fedbilevel.flare.provisioning import Kits
from fedbilevel.flare.rehearsals import pids, rehearsal, stop
from fedbilevel.tracking.records import read_records
from tests.federation import pulled
from tests.federation.bad_site import sitecustomize as bad_site
from tests.federation.experiments import (
    ENVIRONMENT,
    SITES,
    federating,
    written,
)
from tests.federation.live import Live, assert_ends_as_simulated
from tests.federation.processes import command_lines, memory
from tests.waiting import HANG, until

pytestmark = pytest.mark.nightly
ROUNDS = 12
SETTINGS = f"""
rounds = {ROUNDS}
evaluation.every = 1
federation.quorum = 2
federation.timeout = 20.0
"""
DIED = (
    "west: its worker process ended; suspended for 30 seconds, or until its entry in "
)
ENDED = "the job ended before its last round"


class Federation(NamedTuple):
    """Idle processes of a federation, and the file with the sites' misdeeds."""

    kits: Kits
    deeds: Path
    pace: Path


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    home = tmp_path_factory.mktemp("bad")
    deeds, pace = home / "deeds.json", home / "pace"
    paths = [str(Path(bad_site.__file__).parent), os.environ.get("PYTHONPATH", "")]
    changed = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(paths),
        bad_site.DEEDS: str(deeds),
        pulled.PACE: str(pace),
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in changed.items():
            environment.setenv(name, value)
        with rehearsal(home / "kits", SITES, message_limit=16 * 2**20) as kits:
            yield Federation(kits, deeds, pace)


@contextmanager
def run(
    federation: Federation, directory: Path, deeds: dict[str, str], *options: str
) -> Iterator[Live]:
    federation.deeds.write_text(json.dumps(deeds))
    file = written(directory, "LocalBSGM", SETTINGS)
    kit = "--federation.kit", str(federation.kits.lead)
    with federating(file, *kit, *options) as command:
        yield Live(
            command,
            directory / "runs" / "LocalBSGM-federated",
            federation.kits,
            federation.pace,
        )


def ends(live: Live) -> None:
    """Wait until a run has ended; BAD means that a site was often excluded."""
    process = live.command.process
    until(lambda: process.poll() is not None, lambda: live.command.output)
    assert process.returncode in (0, BAD), live.command.output


def finished(live: Live) -> list[dict[str, Any]]:
    """Wait for a run, compare it with a simulation, and return its exchanges."""
    ends(live)
    lines = (live.directory / "exchanges.jsonl").read_text().splitlines()
    exchanges = [json.loads(line) for line in lines]
    counted = [
        [SITES.index(name) for name in exchange["counted"]] for exchange in exchanges
    ]
    assert len(exchanges) == ROUNDS
    assert_ends_as_simulated(live.directory, counted)
    return exchanges


@pytest.mark.parametrize(
    "deed",
    ["exit at the first task", "exit at the fifth task", "leave at the first task"],
)
def test_a_site_whose_worker_exits_is_named_and_the_job_goes_on(
    federation, tmp_path, deed
):
    with run(federation, tmp_path, {"west": deed}) as live:
        exchanges = finished(live)
    assert DIED in live.command.output
    assert ENDED not in live.command.output
    left_out = [exchange["excluded"].get("west") for exchange in exchanges]
    assert "its worker process ended" in left_out
    result = json.loads((live.directory / "suspensions.json").read_text())
    assert result["west"]["reason"] == "its worker process ended"


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("exit before the first task", "its worker process ended"),
        ("hang before the first task", "its worker process did not begin"),
    ],
)
def test_a_site_whose_worker_never_begins_is_suspended(
    federation, tmp_path, deed, reason
):
    with run(federation, tmp_path, {"west": deed}) as live:
        exchanges = finished(live)
    assert f"west: {reason}; suspended for 30 seconds" in live.command.output
    assert "A job with north, east, south starts." in live.command.output
    assert all(
        exchange["counted"] == ["north", "east", "south"] for exchange in exchanges
    )


def test_a_site_that_hangs_is_waited_for_until_the_deadline_of_enrolment(
    federation, tmp_path
):
    # On a machine at load 25 honest sites took more than 120 s.
    options = "--federation.enrolment-timeout", "300"
    with run(
        federation, tmp_path, {"west": "hang at the first task"}, *options
    ) as live:
        finished(live)
    assert "west: did not enrol in 300 seconds; suspended for" in live.command.output


def test_an_event_of_one_site_ends_no_job(federation, tmp_path):
    with run(federation, tmp_path, {"west": "send an event that ends a job"}) as live:
        exchanges = finished(live)
    assert ENDED not in live.command.output
    assert live.command.output.count(" starts.\n") == 1
    assert all(len(exchange["counted"]) == len(SITES) for exchange in exchanges)
    # The event does not reach another site either.
    logs = list(federation.kits.sites["east"].glob("*/log.txt"))
    assert logs
    assert not any("FATAL_SYSTEM_ERROR" in log.read_text() for log in logs)


def test_more_bad_sites_than_the_quorum_allows_are_named(federation, tmp_path):
    deeds = dict.fromkeys(["east", "west"], "exit before the first task")
    options = "--federation.quorum", "3", "--federation.attempts", "2"
    with run(federation, tmp_path, deeds, *options) as live:
        assert live.command.process.wait() == 2
    *_, last = live.command.output.splitlines()
    assert "2 jobs in a row made no progress" in last
    for name in deeds:
        assert f"{name} failed in " in last


@pytest.mark.parametrize("deed", ["declare a huge reply", "send a huge reply"])
def test_a_huge_reply_is_refused_before_room_is_set_aside(federation, tmp_path, deed):
    largest = 0
    with run(federation, tmp_path, {"west": deed}) as live:
        process = live.command.process
        while process.poll() is None:
            result = command_lines(pids(federation.kits.server)).items()
            jobs = [pid for pid, line in result if "runner_process" in line]
            largest = max(largest, memory(jobs))
            time.sleep(0.2)
        exchanges = finished(live)
    # With JAX and compiled programs in memory, and messages of at most 16 MB.
    assert largest < 900e6
    assert any("west" in exchange["excluded"] for exchange in exchanges)
    assert ENDED not in live.command.output


def test_an_unreachable_server_is_reported_and_ends_the_command(federation, tmp_path):
    """The last test, because it stops the server."""
    federation.pace.write_text("0.5")
    options = "--federation.connection-timeout", "40", "--rounds", "1000"
    with run(federation, tmp_path, {}, *options) as live:
        live.command.until(lambda: bool(list(read_records(live.directory))))
        stop(federation.kits.server)
        assert live.command.process.wait(HANG) == 2
    *_, reply, last = live.command.output.splitlines()
    assert "no answer from the server for " in reply
    assert "giving up after 40" in reply
    assert "Start the server, and give the same command again" in last
