"""A federation with secure sums survives kills of its sites, and ends as simulated.

In each round the result equals that of a simulation with the same sites absent.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fedbilevel.deployment.site_files import read_site_files
from fedbilevel.federation import SiteRules
from fedbilevel.federation.sum_record import SUMS
from fedbilevel.flare.provisioning import provision_kits
from fedbilevel.flare.rehearsals import pids, start, stop
from tests.federation import pulled
from tests.federation.experiments import ENVIRONMENT, SITES, federating, written
from tests.federation.live import Live, assert_ends_as_simulated

ROUNDS = 150
SETTINGS = f"""
rounds = {ROUNDS}
evaluation.every = 1
checkpoints.every = 5
federation.timeout = 15.0
federation.secure_sums = true
transforms.clip = 0.5
transforms.integer_bits = 16
"""
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("secure")
    file = written(home, "LocalBSGM", SETTINGS)
    directory = home / "runs" / "LocalBSGM-federated"
    pace = home / "pace"
    pace.write_text("2")
    kits = provision_kits(directory / "kits", SITES)
    for kit in kits.sites.values():
        # These sites refuse any exchange whose upload is not masked.
        rules = kit / "local" / "site_rules.toml"
        text = rules.read_text().replace("secure_sums = false", "secure_sums = true")
        rules.write_text(text)
        found, _ = read_site_files(kit / "local")
        assert isinstance(found, SiteRules)
        assert found.secure_sums
    ours = {pulled.PACE: str(pace)}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**ENVIRONMENT, **ours}.items():
            environment.setenv(name, value)
        try:
            with federating(file, **ours) as command:
                running = Live(command, directory, kits, pace)
                command.until(lambda: (directory / "run").exists())
                command.until(lambda: len(running.exchanges()) > 3)
                yield running
        finally:
            stop(kits.server, *kits.sites.values())


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    jobs, begun = live.jobs, len(live.exchanges())
    live.kill_computation("east")
    live.command.until(
        lambda: any("east" in item["excluded"] for item in live.exchanges()[begun:])
    )
    live.until_all_count()
    assert live.jobs == jobs


def test_a_killed_site_is_missed_and_back_in_another_job(live):
    jobs, site = live.jobs, live.kits.sites["west"]
    for pid in pids(site):
        with suppress(ProcessLookupError):  # The process has ended meanwhile.
            os.kill(pid, signal.SIGKILL)
    live.command.until(lambda: "west" in live.exchanges()[-1]["excluded"])
    start(site)
    live.command.until(lambda: live.jobs > jobs)
    live.until_all_count()


def test_the_run_ends_where_one_does_with_the_same_sites_absent(live):
    live.pace.unlink()
    live.command.until_its_end()
    lines = (live.directory / "exchanges.jsonl").read_text().splitlines()
    counted = [
        tuple(SITES.index(site) for site in json.loads(line)["counted"])
        for line in lines
    ]
    assert len(counted) == ROUNDS
    # Of 4 sites, a sum needs 3.
    assert set(map(len, counted)) == {3, 4}
    assert_ends_as_simulated(live.directory, counted)


def test_sites_recorded_their_sums(live):
    for kit in live.kits.sites.values():
        file = kit / "fedbilevel" / SUMS
        assert len(file.read_text().splitlines()) >= ROUNDS / 2
