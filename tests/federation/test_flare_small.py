"""A federation of real processes, in small: equality, one fault, identity, an end.

The same at full size, with every fault and intruder, is left to the night:
`test_flare_equality`, `test_flare_faults`, `test_identity`, `test_rehearsal` and
`test_federate`.
"""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbilevel.flare.provisioning import Kits, provisioned
from fedbilevel.flare.rehearsal import pids, rehearsal
from tests.federation import pulled
from tests.federation.experiments import ENVIRONMENT, SITES, federating, written
from tests.federation.handshake import hello
from tests.federation.live import Live, assert_ends_as_simulated
from tests.federation.processes import listening

pytestmark = pytest.mark.process
ROUNDS = 24


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    home = tmp_path_factory.mktemp("federation")
    pace = home / "pace"
    pace.write_text("0.3")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**ENVIRONMENT, pulled.PACE: str(pace)}.items():
            environment.setenv(name, value)
        with rehearsal(home / "kits", SITES) as kits:
            yield kits
    assert [pids(kit) for kit in all_of(kits)] == [[]] * (1 + len(SITES))


def all_of(kits: Kits) -> list[Path]:
    return [kits.server, *kits.sites.values()]


@pytest.fixture(scope="module")
def live(kits: Kits) -> Iterator[Live]:
    """A run that a computation is killed in, at its end."""
    home = kits.server.parents[3]
    settings = f"rounds = {ROUNDS}\nevaluation.every = 1"
    file = written(home, "LocalBSGM", settings)
    folder = home / "runs" / "LocalBSGM-federated"
    with federating(file, "--federation.kit", str(kits.lead)) as command:
        live = Live(command, folder, kits, home / "pace")
        command.until(lambda: (folder / "run").exists())
        command.until(lambda: bool(live.exchanges()))
        live.kill_computation("east")
        live.until_all_count()
        live.pace.unlink()
        command.until_its_end()
        yield live


def test_who_has_the_documented_role_may_submit_and_ask(kits, live):
    submitter = json.loads((kits.lead / "startup" / "fed_admin.json").read_text())
    assert submitter["admin"]["username"].startswith("lead@")
    policy = json.loads((kits.server / "local" / "authorization.json").read_text())
    assert policy["permissions"]["lead"]["app_command"] == "n:submitter"


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    reasons = [one["left_out"].get("east", "") for one in exchanges(live.folder)]
    assert any("was killed (signal 9" in reason for reason in reasons), reasons
    assert live.jobs == 1


def test_the_run_ends_where_one_does_with_the_same_sites_absent(live):
    counted = [
        [SITES.index(site) for site in one["counted"]] for one in exchanges(live.folder)
    ]
    assert len(counted) == ROUNDS
    assert_ends_as_simulated(live.folder, counted)


def exchanges(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "exchanges.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_only_who_shows_a_certificate_of_the_federation_is_spoken_to(kits, tmp_path):
    assert hello(kits, kits.sites["east"])
    # A site of the same name, of a federation of one's own.
    stranger = provisioned(tmp_path, SITES).sites["east"]
    for shown in (None, stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            hello(kits, shown)


def test_nothing_listens_beyond_the_loopback(kits):
    heard = listening(pid for kit in all_of(kits) for pid in pids(kit))
    assert heard
    assert {address.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}
