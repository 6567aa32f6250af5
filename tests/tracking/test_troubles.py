"""Servers that are away, and libraries that are not there."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedbilevel import Costs
from fedbilevel.__main__ import main
from fedbilevel.tracking import (
    MLflow,
    Record,
    TensorBoard,
    WeightsAndBiases,
    driving,
    read_records,
    tracked,
)
from tests.commands.typing_in import as_for_users
from tests.tracking.commands import FILE, start
from tests.tracking.servers import TIMEOUT, Server
from tests.waiting import HANG

pytestmark = pytest.mark.process


def test_a_server_that_is_away_at_the_beginning_is_told_at_once(tmp_path, capsys):
    file = tmp_path / "asked.toml"
    file.write_text(FILE.partition("[tracking]")[0])
    with as_for_users():
        words = ["run", str(file), "--tracking.mlflow", "http://127.0.0.1:1"]
        assert main(words) == 2
    assert capsys.readouterr().err.endswith(
        "fedbilevel run: no MLflow server answers at http://127.0.0.1:1; start one "
        "there (mlflow server), or leave MLflow out.\n"
    )


@pytest.mark.nightly
def test_a_run_outlives_its_server_and_warns_once(server, tmp_path):
    file = tmp_path / "asked.toml"
    file.write_text(FILE.partition("[tracking]")[0])
    mortal = Server(tmp_path, like=server)
    words = ["--tracking.mlflow", mortal.uri, "--rounds", "100"]
    running = start("run", str(file), "--json", *words)
    assert running.stdout is not None
    for line in running.stdout:
        if Record.parse(line).rounds == 5:
            mortal.signal(signal.SIGKILL)
            break
    _, errors = running.communicate(timeout=HANG)
    assert running.returncode == 0, errors
    assert errors.count("MLflow had trouble") == 1
    records = read_records(tmp_path / "runs" / "asked")
    assert [one.rounds for one in records] == list(range(101))


def test_what_a_stuck_server_missed_is_sent_once_it_answers(
    server, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(driving, "PAUSE", HANG)
    sent: list[Record] = []
    really_send = MLflow.record

    def send(tracker: MLflow, record: Record) -> None:
        sent.append(record)
        really_send(tracker, record)

    monkeypatch.setattr(MLflow, "record", send)
    losses = [0.5, float("nan"), 0.25]
    records = [Record(n, 0.1 * n, Costs(), {"loss": x}) for n, x in enumerate(losses)]
    with tracked([MLflow(server.uri, tmp_path)], "stuck", {}) as record:
        record(records[0])
        server.signal(signal.SIGSTOP)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        try:
            record(records[1])
            assert "MLflow had trouble" in caplog.text
            tried = len(sent)
            record(records[2])
            # While the server is stuck later records only wait.
            assert len(sent) == tried
        finally:
            server.signal(signal.SIGCONT)
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", TIMEOUT)
    client = server.client()
    name = (tmp_path / "mlflow_run").read_text()
    history = client.get_metric_history(name, "loss")
    assert sorted(one.step for one in history) == [0, 1, 2]
    found = {one.step: one.value for one in history}
    assert [found[n] for n in range(3)] == pytest.approx(losses, nan_ok=True)
    assert client.get_run(name).info.status == "FINISHED"


def test_mlflow_keeps_once_what_it_got_twice(server, tmp_path):
    one = Record(0, 0.1, Costs(), {"loss": 0.5})
    with tracked([MLflow(server.uri, tmp_path)], "twice", {}) as record:
        record(one)
        record(one)
    name = (tmp_path / "mlflow_run").read_text()
    assert len(server.client().get_metric_history(name, "loss")) == 1


def test_a_server_that_is_stuck_at_the_beginning_is_told_in_seconds(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="no MLflow server answers"):
            MLflow(server.uri, tmp_path).begin("stuck", {}, goes_on=False)
        # By itself MLflow tries for minutes. One request ends after a second, and on a
        # machine at load 10 not much later: it waits, it does not compute.
        assert time.monotonic() - began < 60
    finally:
        server.signal(signal.SIGCONT)


def test_a_run_that_fails_has_failed_in_mlflow_too(server, tmp_path):
    before = dict(os.environ)
    with (
        pytest.raises(ArithmeticError, match="diverged"),
        tracked([MLflow(server.uri, tmp_path)], "failed", {"rate": 0.1}),
    ):
        raise ArithmeticError("diverged")
    run = server.client().get_run((tmp_path / "mlflow_run").read_text())
    assert run.info.status == "FAILED"
    assert run.data.params == {"rate": "0.1"}
    assert dict(os.environ) == before


def test_a_run_goes_on_as_a_new_one_where_the_server_does_not_know_it(server, tmp_path):
    (tmp_path / "mlflow_run").write_text("0" * 32)
    with tracked([MLflow(server.uri, tmp_path)], "new", {}, goes_on=True):
        pass
    name = (tmp_path / "mlflow_run").read_text()
    assert server.client().get_run(name).info.run_name == "new"


def test_a_run_begun_anew_in_a_folder_is_another_run(server, tmp_path):
    names = []
    for rate in (0.1, 0.2):
        with tracked([MLflow(server.uri, tmp_path)], "again", {"rate": rate}):
            names.append((tmp_path / "mlflow_run").read_text())
    runs = [server.client().get_run(name) for name in names]
    assert [one.data.params["rate"] for one in runs] == ["0.1", "0.2"]


def test_trackers_that_have_begun_are_ended_where_another_cannot(server, tmp_path):
    trackers = [MLflow(server.uri, tmp_path), MLflow("http://127.0.0.1:1", tmp_path)]
    with (
        pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1;"),
        tracked(trackers, "halfway", {}),
    ):
        pass
    run = server.client().get_run((tmp_path / "mlflow_run").read_text())
    assert run.info.status == "FAILED"


def test_what_is_no_address_of_a_server_is_told(tmp_path):
    with pytest.raises(ConnectionError, match="MLflow at gopher://old cannot be used"):
        MLflow("gopher://old", tmp_path).begin("wrong", {}, goes_on=False)


def test_nobody_logged_in_to_wandb_is_told_what_to_do(tmp_path):
    program = (
        "from pathlib import Path; from fedbilevel.tracking import WeightsAndBiases;"
        "WeightsAndBiases('federated', Path('run')).begin('first', {}, goes_on=False)"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "HOME": str(tmp_path)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert "Weights & Biases cannot be used: No API key" in ended.stderr
    assert "WANDB_MODE=offline" in ended.stderr


@pytest.mark.parametrize(
    ("tracker", "library", "extra"),
    [
        (TensorBoard, "tensorboardX", "tensorboard"),
        (MLflow, "mlflow.tracking", "mlflow"),
        (WeightsAndBiases, "wandb", "wandb"),
    ],
)
def test_a_missing_library_is_told_with_its_extra(
    tracker, library, extra, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    made = tracker(tmp_path) if tracker is TensorBoard else tracker("any", tmp_path)
    with pytest.raises(ImportError, match=rf"pip install 'fedbilevel\[{extra}\]'"):
        made.begin("first", {}, goes_on=False)


def test_no_library_of_a_tracker_is_imported_before_it_begins():
    program = (
        "import sys, fedbilevel.tracking, fedbilevel.commands.run;"
        "print({'mlflow', 'wandb', 'tensorboardX', 'tensorboard'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG
    )
    assert ended.stdout == "set()\n"
