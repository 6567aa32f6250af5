"""A site answers only the server; run directories of server and sites."""

import json

import pytest
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.collab.api.app import ClientApp
from nvflare.collab.api.context import Context, set_call_context
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream, BlobTask
from nvflare.fuel.f3.streaming.stream_types import StreamFuture

from fedbilevel.federation import RefusedError
from fedbilevel.flare.collab_site import CollabSite
from fedbilevel.flare.run_directory import run_directory_of


@pytest.mark.slow
@pytest.mark.parametrize("method", ["enrol", "answer"])
def test_a_site_answers_no_other_site(method):
    site = CollabSite("first", seconds=600.0)
    app = ClientApp(site)
    app.name = "north"
    set_call_context(Context(app, "south", "north", Signal()))
    try:
        arguments = [b"anything"] if method == "answer" else [0]
        answer = getattr(site, method)(*arguments)
    finally:
        set_call_context(None)
    assert answer == RefusedError("only the server may call a site").failure.encode()


def test_a_message_that_comes_is_not_written_out_as_text():
    CollabSite("first", seconds=600.0)
    # NVIDIA FLARE formats this buffer for its debug line.
    message = BlobStream(bytes(10**6), {})
    come = BlobTask(StreamFuture(1, {}), message, preserve_chunks=True).buffer
    come.append(bytes(message.read(10**6)))
    assert len(f"incoming data={come}") < 100


@pytest.fixture
def workspace(tmp_path):
    for directory in ("startup", "local", "job-1", "job-2"):
        (tmp_path / directory).mkdir()
    for job, name in (("job-1", "lead@north.org"), ("job-2", "lead@south.org")):
        meta = json.dumps({"submitter_name": name})
        (tmp_path / job / "meta.json").write_text(meta)
    return Workspace(str(tmp_path), site_name="north")


def test_a_run_belongs_to_whoever_submitted_it(workspace, tmp_path):
    first, second = (
        run_directory_of("a1", workspace, job) for job in ("job-1", "job-2")
    )
    assert first != second
    assert first.name == second.name == "a1"
    assert first.is_relative_to(tmp_path / "fedbilevel")


@pytest.mark.parametrize("name", ["../local", "/etc", "a/b", "", ".", "é"])
def test_a_run_has_no_directory_elsewhere(workspace, name):
    with pytest.raises(ValueError, match="give a name of letters and digits"):
        run_directory_of(name, workspace, "job-1")
