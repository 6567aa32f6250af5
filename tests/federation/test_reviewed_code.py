"""Sites that refuse code in jobs execute reviewed files."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbilevel.deployment.local_code import digest_of
from fedbilevel.flare.kit_settings import prepare
from fedbilevel.flare.kits import review
from fedbilevel.flare.provisioning import Kits, provision_kits
from fedbilevel.flare.rehearsals import rehearsal
from tests.federation.experiments import ENVIRONMENT, SITES, federating, written
from tests.waiting import HANG

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    """A federation whose sites are prepared as docs/operations.md describes."""
    home = tmp_path_factory.mktemp("reviewed")
    kits = provision_kits(home / "kits", SITES)
    for kit in kits.sites.values():
        prepare(kit)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        with rehearsal(home / "kits", SITES):
            yield kits


def ended(file: Path, kits: Kits) -> tuple[int, str]:
    with federating(file, "--federation.kit", str(kits.lead)) as command:
        try:
            code = command.process.wait(HANG)
        except subprocess.TimeoutExpired:
            pytest.fail(command.output)
        return code, command.output


def test_a_reviewed_file_runs_and_others_do_not(kits, tmp_path):
    settings = "rounds = 3\nfederation.local_code = true"
    file = written(tmp_path / "first", "LocalBSGM", settings)
    problem = file.parent / "pulled.py"
    *most, last = kits.sites.values()
    for kit in (kits.server, *most):
        review(kit, problem)
    code, output = ended(file, kits)
    assert code == 2, output
    assert f"{last.name} could not begin: the problem file pulled.py with SHA" in output
    assert digest_of(problem) in output
    review(last, problem)
    file = written(tmp_path / "second", "LocalBSGM", settings)
    code, output = ended(file, kits)
    assert code in (0, 3), output
    assert (file.parent / "runs" / "LocalBSGM-federated" / "solution.npz").exists()


def test_a_job_that_brings_code_is_not_deployed(kits, tmp_path):
    settings = "rounds = 3\nfederation.attempts = 1"
    file = written(tmp_path, "LocalBSGM", settings)
    code, output = ended(file, kits)
    assert code == 2, output
    assert not (tmp_path / "runs" / "LocalBSGM-federated" / "solution.npz").exists()
