"""A site executes reviewed problem files only.

Nightly with separate server and site processes: `test_reviewed_code`.
"""

import json
from pathlib import Path

import pytest

from fedbilevel import FedBiO
from fedbilevel.deployment.job_files import prepare_for_job, read_job_experiment
from fedbilevel.deployment.local_code import PROBLEMS, UnknownCodeError, digest_of
from fedbilevel.deployment.site_computation import build_answer
from fedbilevel.deployment.site_files import write_site_files
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import CustomProblem, Experiment, FederationSettings
from fedbilevel.federation import REHEARSAL, Failure, FailureCause
from fedbilevel.federation.transport import ENROL
from fedbilevel.flare.kit_settings import prepare
from fedbilevel.flare.kits import review
from fedbilevel.flare.recipe import FederationRecipe
from tests.flare.kits import site_kit

POLICY = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": "any",
        "lead": {"submit_job": "any", "byoc": "any"},
        "member": {"view": "any"},
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    source = tmp_path / "mine" / "hospitals.py"
    source.parent.mkdir()
    source.write_text("open('executed', 'w')")
    return source


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    kit = site_kit(tmp_path / "kit", POLICY)
    write_site_files(kit / "local", REHEARSAL)
    return kit


def sent(file: Path, job: Path, is_reviewed: bool) -> Path:
    """Write the files of a job; return its configuration directory."""
    federation = FederationSettings(sites=("north", "south"), local_code=is_reviewed)
    experiment = Experiment(
        FedBiO(0.1), problem=CustomProblem(file), federation=federation
    )
    job.mkdir()
    write_experiment(prepare_for_job(experiment), job / EXPERIMENT)
    recipe = FederationRecipe(experiment, run="a1")
    assert recipe._user_source_entries([]) == (
        [] if is_reviewed else [(str(file), None)]
    )
    return job


def test_a_job_names_a_reviewed_file_and_brings_none(file, kit, tmp_path):
    digest = review(kit, file)
    job = sent(file, tmp_path / "job", is_reviewed=True)
    result = read_job_experiment(job, tmp_path / "custom", kit).problem
    assert isinstance(result, CustomProblem)
    assert result.file.parent == kit / PROBLEMS
    assert result.file.read_text() == file.read_text()
    # The submitter's file may change; the reviewed copy is executed.
    file.write_text("raise ValueError")
    assert digest_of(result.file) == digest


def test_an_unknown_file_is_refused_with_its_digest_and_a_cure(
    file, kit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    job = sent(file, tmp_path / "job", is_reviewed=True)
    message = rf"hospitals.py with SHA-256 {digest_of(file)} is not .* can read the"
    with pytest.raises(UnknownCodeError, match=message):
        read_job_experiment(job, tmp_path, kit)
    answer = build_answer("north", tmp_path / "home", job, file.parent, kit, kit)
    reply = answer(ENROL)
    assert isinstance(reply, str)
    failure = Failure.decode(reply)
    assert failure.cause is FailureCause.UNABLE
    assert failure.reason.startswith("could not begin: the problem file hospitals.py")
    assert digest_of(file) in failure.reason
    assert not (tmp_path / "executed").exists()


def test_a_changed_copy_is_no_longer_a_reviewed_one(file, kit, tmp_path):
    digest = review(kit, file)
    job = sent(file, tmp_path / "job", is_reviewed=True)
    (kit / PROBLEMS / f"{digest}.py").write_text("raise SystemExit")
    with pytest.raises(UnknownCodeError, match="is not among the reviewed files"):
        read_job_experiment(job, tmp_path, kit)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.py", "def task(:", "is not valid Python"),
        ("p.toml", "a = [", "is not valid Python"),
    ],
)
def test_what_is_no_python_is_not_allowed(name, text, message, kit, tmp_path):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        review(kit, file)
    with pytest.raises(ValueError, match="is not a file; give"):
        review(kit, tmp_path / "missing.py")
    assert not (kit / PROBLEMS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("digest", ["../../mine/hospitals", "", "*", "/etc/passwd"])
def test_what_a_job_says_is_no_path(digest, file, kit, tmp_path):
    review(kit, file)
    job = sent(file, tmp_path / "job", is_reviewed=True)
    text = (job / EXPERIMENT).read_text()
    (job / EXPERIMENT).write_text(text.replace(digest_of(file), digest))
    with pytest.raises(UnknownCodeError, match="is not among the reviewed files"):
        read_job_experiment(job, tmp_path, kit)


def test_a_file_that_travels_is_taken_from_the_job(file, kit, tmp_path):
    job = sent(file, tmp_path / "job", is_reviewed=False)
    assert read_job_experiment(job, tmp_path / "custom", kit).problem == CustomProblem(
        tmp_path / "custom" / "hospitals.py"
    )


def test_a_prepared_site_refuses_code_by_default(kit):
    local = kit / "local"
    prepare(kit, code_from_outside=True)
    assert not (local / "authorization.json").exists()
    prepare(kit)
    roles = json.loads((local / "authorization.json").read_text())["permissions"]
    assert {role: rights["byoc"] for role, rights in roles.items()} == {
        "project_admin": "none",
        "lead": "none",
        "member": "none",
    }
    assert roles["project_admin"]["manage_job"] == "any"
    assert roles["lead"]["submit_job"] == "any"
    assert roles["member"]["view"] == "any"


def test_a_policy_of_the_site_stays(kit):
    local = kit / "local"
    (local / "authorization.json").write_text("mine")
    prepare(kit)
    assert (local / "authorization.json").read_text() == "mine"
