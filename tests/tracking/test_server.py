"""A real MLflow server: a stopped and resumed run, and a failing server.

What each tracker has of that run is here too. All that needs the server is in this
file, so that there is one.
"""

import os
import shutil
import signal
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbilevel import Costs
from fedbilevel.tracking import MLflow, Record, delivery, read_records, track
from fedbilevel.tracking.protocol import numbers
from tests.tracking.commands import FILE, start
from tests.tracking.servers import TIMEOUT, Server
from tests.tracking.wandb_files import wandb_history, wandb_records
from tests.waiting import HANG

pytestmark = pytest.mark.process


class Left(NamedTuple):
    directory: Path
    status: str
    before: list[Record]
    after: list[Record]


@pytest.fixture(scope="module")
def left(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Left:
    file = tmp_path_factory.mktemp("run") / "asked.toml"
    file.write_text(FILE)
    directory = file.parent / "runs" / "asked"
    running = start("run", str(file), "--json", "--tracking.mlflow", server.uri)
    assert running.stdout is not None
    for line in running.stdout:
        if Record.parse(line).rounds == 7:
            running.send_signal(signal.SIGINT)
            break
    _, errors = running.communicate(timeout=HANG)
    assert running.returncode == 130, errors
    before = list(read_records(directory))
    client = server.client()
    status = client.get_run((directory / "mlflow_run").read_text()).info.status
    # As if the machine had died soon after its first checkpoint: rounds are run again.
    checkpoints = (directory / "checkpoints").glob("round_*")
    _, *later = sorted(
        checkpoints, key=lambda one: int(one.name.removeprefix("round_"))
    )
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    end = before[-1].rounds + 3
    again = start("resume", str(directory), "--json", "--rounds", str(end))
    _, errors = again.communicate(timeout=HANG)
    assert again.returncode == 0, errors
    return Left(directory, status, before, list(read_records(directory)))


@pytest.mark.nightly
def test_the_run_was_left_and_went_on(left):
    assert len(left.before) >= 8
    assert [one.rounds for one in left.after] == list(range(len(left.before) + 3))


@pytest.mark.nightly
def test_mlflow_has_one_run_with_the_settings_and_every_round(left, server):
    client = server.client()
    experiment = client.get_experiment_by_name("fedbilevel")
    named = [
        one
        for one in client.search_runs([experiment.experiment_id])
        if one.info.run_name == "asked"
    ]
    assert [one.info.run_id for one in named] == [
        (left.directory / "mlflow_run").read_text()
    ]
    assert left.status == "KILLED"
    assert named[0].info.status == "FINISHED"
    written = tomllib.loads((left.directory / "experiment.toml").read_text())
    params = named[0].data.params
    assert params["algorithm.name"] == "FedBiO"
    assert params["algorithm.learning_rate"] == "0.1"
    # MLflow stores the first parameters of a run; the run directory has the newest.
    assert params["rounds"] == "2000"
    assert written["rounds"] == left.after[-1].rounds
    assert not [name for name in params if name.startswith("tracking")]
    for name in numbers(left.after[0]):
        history = client.get_metric_history(named[0].info.run_id, name)
        content = {one.step: one.value for one in history}
        wanted = {one.rounds: numbers(one)[name] for one in left.after}
        if name == "spent/seconds":
            assert content.keys() == wanted.keys()
        else:
            assert content == wanted


@pytest.mark.nightly
def test_tensorboard_shows_every_round_once(left):
    from tensorboard.backend.event_processing import (
        event_accumulator,
    )

    events = event_accumulator.EventAccumulator(
        str(left.directory), size_guidance={"scalars": 0}
    )
    events.Reload()
    for name in numbers(left.after[0]):
        content = [(one.step, one.value) for one in events.Scalars(name)]
        wanted = [(one.rounds, numbers(one)[name]) for one in left.after]
        assert [step for step, _ in content] == [step for step, _ in wanted]
        if name != "spent/seconds":
            assert [one for _, one in content] == pytest.approx(
                [one for _, one in wanted], rel=1e-6
            )
    (text,) = events.Tensors("settings/text_summary")[-1:]
    assert b"algorithm.name = FedBiO" in text.tensor_proto.string_val[0]


@pytest.mark.nightly
def test_wandb_has_both_parts_under_one_id(left):
    files = sorted((left.directory / "wandb").glob("offline-run-*/run-*.wandb"))
    name = (left.directory / "wandb_run").read_text()
    assert [file.name for file in files] == [f"run-{name}.wandb"] * 2
    first, second = map(wandb_history, files)
    assert [one["rounds"] for one in first] == [one.rounds for one in left.before]
    resumed = second[0]["rounds"]
    assert 0 < resumed < len(left.before)
    assert [one["rounds"] for one in second] == [
        one.rounds for one in left.after[resumed:]
    ]
    for logged in (*first, *second):
        wanted = numbers(left.after[logged["rounds"]])
        assert logged["loss"] == wanted["loss"]
        assert logged["spent/bytes_up"] == wanted["spent/bytes_up"]
    (run,) = [one.run for one in wandb_records(files[0]) if one.run.run_id]
    assert run.project == "federated"
    assert "algorithm.name" in {one.key for one in run.config.update}
    codes = [
        [one.exit.exit_code for one in wandb_records(f) if one.HasField("exit")]
        for f in files
    ]
    assert codes == [[255], [0]]


@pytest.mark.nightly
def test_a_run_outlives_its_server_and_warns_once(server, tmp_path):
    file = tmp_path / "asked.toml"
    file.write_text(FILE.partition("[tracking]")[0])
    mortal = Server(tmp_path, like=server)
    options = ["--tracking.mlflow", mortal.uri, "--rounds", "100"]
    running = start("run", str(file), "--json", *options)
    assert running.stdout is not None
    for line in running.stdout:
        if Record.parse(line).rounds == 5:
            mortal.signal(signal.SIGKILL)
            break
    _, errors = running.communicate(timeout=HANG)
    assert running.returncode == 0, errors
    assert errors.count("MLflow failed: ") == 1
    records = read_records(tmp_path / "runs" / "asked")
    assert [one.rounds for one in records] == list(range(101))


def test_what_a_stuck_server_missed_is_sent_once_it_answers(
    server, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(delivery, "PAUSE", HANG)
    sent: list[Record] = []
    really_send = MLflow.record

    def send(tracker: MLflow, record: Record) -> None:
        sent.append(record)
        really_send(tracker, record)

    monkeypatch.setattr(MLflow, "record", send)
    losses = [0.5, float("nan"), 0.25]
    records = [Record(n, 0.1 * n, Costs(), {"loss": x}) for n, x in enumerate(losses)]
    with track([MLflow(server.uri, tmp_path)], "stuck", {}) as record:
        record(records[0])
        server.signal(signal.SIGSTOP)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        try:
            record(records[1])
            assert "MLflow failed: " in caplog.text
            tried = len(sent)
            record(records[2])
            # While the server does not respond, later records wait.
            assert len(sent) == tried
        finally:
            server.signal(signal.SIGCONT)
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", TIMEOUT)
    client = server.client()
    name = (tmp_path / "mlflow_run").read_text()
    history = client.get_metric_history(name, "loss")
    assert sorted(one.step for one in history) == [0, 1, 2]
    content = {one.step: one.value for one in history}
    assert [content[n] for n in range(3)] == pytest.approx(losses, nan_ok=True)
    assert client.get_run(name).info.status == "FINISHED"


def test_mlflow_keeps_once_what_it_got_twice(server, tmp_path):
    one = Record(0, 0.1, Costs(), {"loss": 0.5})
    with track([MLflow(server.uri, tmp_path)], "twice", {}) as record:
        record(one)
        record(one)
    name = (tmp_path / "mlflow_run").read_text()
    assert len(server.client().get_metric_history(name, "loss")) == 1


def test_a_server_that_is_stuck_at_the_start_is_reported_in_seconds(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="no MLflow server responds"):
            MLflow(server.uri, tmp_path).begin("stuck", {}, resume=False)
        # By itself MLflow tries for minutes. One request ends after a second, and on a
        # machine at load 10 not much later: it waits, it does not compute.
        assert time.monotonic() - began < 60
    finally:
        server.signal(signal.SIGCONT)


def test_a_run_that_fails_has_failed_in_mlflow_too(server, tmp_path):
    before = dict(os.environ)
    with (
        pytest.raises(ArithmeticError, match="diverged"),
        track([MLflow(server.uri, tmp_path)], "failed", {"rate": 0.1}),
    ):
        raise ArithmeticError("diverged")
    run = server.client().get_run((tmp_path / "mlflow_run").read_text())
    assert run.info.status == "FAILED"
    assert run.data.params == {"rate": "0.1"}
    assert dict(os.environ) == before


def test_a_run_unknown_to_the_server_is_resumed_as_a_new_one(server, tmp_path):
    (tmp_path / "mlflow_run").write_text("0" * 32)
    with track([MLflow(server.uri, tmp_path)], "new", {}, resume=True):
        pass
    name = (tmp_path / "mlflow_run").read_text()
    assert server.client().get_run(name).info.run_name == "new"


def test_a_new_run_in_the_same_directory_is_another_run(server, tmp_path):
    names = []
    for rate in (0.1, 0.2):
        with track([MLflow(server.uri, tmp_path)], "again", {"rate": rate}):
            names.append((tmp_path / "mlflow_run").read_text())
    runs = [server.client().get_run(name) for name in names]
    assert [one.data.params["rate"] for one in runs] == ["0.1", "0.2"]


def test_trackers_that_have_begun_are_ended_where_another_cannot(server, tmp_path):
    trackers = [MLflow(server.uri, tmp_path), MLflow("http://127.0.0.1:1", tmp_path)]
    with (
        pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1\."),
        track(trackers, "halfway", {}),
    ):
        pass
    run = server.client().get_run((tmp_path / "mlflow_run").read_text())
    assert run.info.status == "FAILED"
