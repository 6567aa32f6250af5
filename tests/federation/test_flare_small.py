"""A small federation of separate processes: equality, faults, identity, end.

The same at full size, with every fault and intruder, is left to the night:
`test_flare_equality`, `test_flare_faults`, `test_identity`, `test_rehearsal` and
`test_federate`.
"""

import json
import os
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedbilevel.experiments.outcome import BAD
from fedbilevel.flare import rehearsals as rehearsing
from fedbilevel.flare.provisioning import Kits, provision_kits
from fedbilevel.flare.rehearsals import pids, rehearsal
from tests.federation import pulled
from tests.federation.bad_site import sitecustomize as bad_site
from tests.federation.experiments import ENVIRONMENT, federating, written
from tests.federation.handshake import hello
from tests.federation.live import Live, assert_ends_as_simulated
from tests.federation.processes import listening
from tests.waiting import HANG, until

pytestmark = pytest.mark.process
ROUNDS = 24
# One site is killed, one exits, one continues: each needs three processes.
SITES = tuple(pulled.SIZES)[:3]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    home = tmp_path_factory.mktemp("federation")
    pace, deeds = home / "pace", home / "deeds.json"
    pace.write_text("0.3")
    deeds.write_text(json.dumps({"south": "exit at the fifth task"}))
    paths = [str(Path(bad_site.__file__).parent), os.environ.get("PYTHONPATH", "")]
    ours = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(paths),
        pulled.PACE: str(pace),
        bad_site.DEEDS: str(deeds),
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ours.items():
            environment.setenv(name, value)
        environment.setattr(rehearsing, "CONNECT_SECONDS", HANG)
        with rehearsal(home / "kits", SITES) as kits:
            yield kits
    assert [pids(kit) for kit in all_of(kits)] == [[]] * (1 + len(SITES))


def all_of(kits: Kits) -> list[Path]:
    return [kits.server, *kits.sites.values()]


@pytest.fixture(scope="module")
def live(kits: Kits) -> Iterator[Live]:
    """A finished run in which a computation was killed and a site's worker exited."""
    home = kits.server.parents[3]
    settings = f"rounds = {ROUNDS}\nevaluation.every = 1\n"
    # On a busy machine a computation takes more than 60 seconds to restart.
    settings += "federation.timeout = 300.0"
    file = written(home, "LocalBSGM", settings, SITES)
    directory = home / "runs" / "LocalBSGM-federated"
    with federating(file, "--federation.kit", str(kits.lead)) as command:
        live = Live(command, directory, kits, home / "pace")
        command.until(lambda: (directory / "run").exists())
        command.until(lambda: bool(live.exchanges()))
        # Repeated if the busy machine sent no task meanwhile.
        while not killed(live.exchanges()):
            live.kill_computation("east")
            command.until(partial(counts, live, "east", len(live.exchanges())))
        command.until(lambda: "south: its worker process ended" in command.output)
        live.pace.unlink()
        until(lambda: command.process.poll() is not None, lambda: command.output)
        # The exit code is BAD if a site was often excluded.
        assert command.process.returncode in (0, BAD), command.output
        yield live


def test_who_has_the_documented_role_may_submit_and_ask(kits, live):
    submitter = json.loads((kits.lead / "startup" / "fed_admin.json").read_text())
    assert submitter["admin"]["username"].startswith("lead@")
    policy = json.loads((kits.server / "local" / "authorization.json").read_text())
    assert policy["permissions"]["lead"]["app_command"] == "n:submitter"


def counts(live: Live, site: str, begun: int) -> bool:
    """Return whether a site's upload has counted since a number of exchanges."""
    return any(site in exchange["counted"] for exchange in live.exchanges()[begun:])


def killed(exchanges: list[dict[str, Any]]) -> bool:
    """Return whether the computation of a site was killed in one of the exchanges."""
    reasons = [exchange["excluded"].get("east", "") for exchange in exchanges]
    return any("was killed (signal 9" in reason for reason in reasons)


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    assert killed(exchanges(live.directory))
    assert "the job ended before its last round" not in live.command.output


def test_a_site_whose_worker_exits_is_named_and_ends_no_job(live):
    reasons = [
        exchange["excluded"].get("south", "") for exchange in exchanges(live.directory)
    ]
    assert "its worker process ended" in reasons
    left_out = json.loads((live.directory / "suspensions.json").read_text())
    assert left_out["south"]["times"] == 1
    assert "the job ended before its last round" not in live.command.output


def test_records_at_the_end_are_the_servers(live):
    first, second = (item / "metrics.jsonl" for item in (live.directory, live.home))
    assert first.read_text() == second.read_text()


def test_the_run_ends_where_one_does_with_the_same_sites_absent(live):
    counted = [
        [SITES.index(site) for site in exchange["counted"]]
        for exchange in exchanges(live.directory)
    ]
    assert len(counted) == ROUNDS
    assert_ends_as_simulated(live.directory, counted)


def exchanges(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "exchanges.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_only_who_shows_a_certificate_of_the_federation_is_spoken_to(kits, tmp_path):
    assert hello(kits, kits.sites["east"])
    # A site of the same name, from another federation.
    stranger = provision_kits(tmp_path, SITES).sites["east"]
    for shown in (None, stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            hello(kits, shown)


def test_nothing_listens_beyond_the_loopback(kits):
    heard = listening(pid for kit in all_of(kits) for pid in pids(kit))
    assert heard
    assert {address.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}
