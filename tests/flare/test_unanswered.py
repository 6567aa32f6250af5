"""Errors of NVIDIA FLARE are reported with a cause, a place and a cure."""

import json
from pathlib import Path

import pytest
from nvflare.fuel.flare_api.api_spec import AuthenticationError
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.provisioner import Provisioner

from fedbilevel.flare import administrator, rehearsals
from fedbilevel.flare.administrator import Administrator, NoAnswerError, reason_of
from fedbilevel.flare.provisioning import Kits, provision_kits
from fedbilevel.flare.rehearsals import connected_sites


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit of an administrator, without certificates."""
    file = tmp_path / "admin" / "startup" / "fed_admin.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"admin": {"username": "admin@example.org"}}))
    return tmp_path / "admin"


def raising(error: Exception):
    def open_session(kit: Path) -> None:
        raise error

    return open_session


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError("connection refused."), "connection refused"),
        (TimeoutError(), "TimeoutError"),  # Some errors of a connection have no text.
    ],
)
def test_a_request_without_an_answer_names_the_kit(error, cause, kit, monkeypatch):
    monkeypatch.setattr(administrator, "open_session", raising(error))
    with pytest.raises(NoAnswerError) as caught:
        Administrator(kit).connected()
    assert str(caught.value) == (
        f"The server of {kit} did not answer: {cause}. Start the server, or correct "
        f"its address in {kit}/startup/fed_admin.json."
    )
    # A notice of the supervision adds its own cure.
    assert reason_of(caught.value) == f"the server of {kit} did not answer: {cause}"


def test_a_refused_request_names_the_kit_to_use(kit, monkeypatch):
    refusing = raising(AuthenticationError("Incorrect user name or password"))
    monkeypatch.setattr(administrator, "open_session", refusing)
    with pytest.raises(PermissionError) as caught:
        Administrator(kit).connected()
    assert str(caught.value) == (
        f"The server of {kit} refused the request: Incorrect user name or password. "
        "Use the kit of an administrator of this federation whose role permits the "
        "request."
    )


def test_a_rehearsal_without_a_server_names_the_log_of_the_server(kit, monkeypatch):
    kits = Kits(kit.parent / "localhost", {}, kit, kit)
    monkeypatch.setattr(rehearsals, "open_session", raising(TimeoutError("too late")))
    with pytest.raises(ConnectionError) as caught:
        connected_sites(kits)
    assert str(caught.value) == (
        f"No server answers to kit {kit}: too late. Start the processes with "
        f"rehearsal(), or see console.txt in {kits.server}."
    )


def test_kits_that_cannot_be_created_name_the_directory_to_delete(
    tmp_path, monkeypatch
):
    def fail(self, project, logger):
        return {CtxKey.BUILD_ERROR: True, CtxKey.ERRORS: ["no space left"]}

    monkeypatch.setattr(Provisioner, "provision", fail)
    with pytest.raises(RuntimeError) as caught:
        provision_kits(tmp_path, ["site-1"])
    assert str(caught.value) == (
        f"NVIDIA FLARE could not create startup kits in {tmp_path}: no space left. "
        f"Correct this, delete {tmp_path}/rehearsal, and repeat the command."
    )
