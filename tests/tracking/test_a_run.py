"""A run left by Ctrl-C and resumed, as a user does it, and what each tracker has."""

import shutil
import signal
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbilevel.tracking import Record, read_records
from fedbilevel.tracking.protocol import numbers
from tests.tracking.commands import FILE, start
from tests.tracking.servers import Server
from tests.tracking.wandb_files import wandb_history, wandb_records
from tests.waiting import HANG

pytestmark = pytest.mark.process


class Left(NamedTuple):
    folder: Path
    status: str
    before: list[Record]
    after: list[Record]


@pytest.fixture(scope="module")
def left(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Left:
    file = tmp_path_factory.mktemp("run") / "asked.toml"
    file.write_text(FILE)
    folder = file.parent / "runs" / "asked"
    running = start("run", str(file), "--json", "--tracking.mlflow", server.uri)
    assert running.stdout is not None
    for line in running.stdout:
        if Record.parse(line).rounds == 7:
            running.send_signal(signal.SIGINT)
            break
    _, errors = running.communicate(timeout=HANG)
    assert running.returncode == 130, errors
    before = list(read_records(folder))
    client = server.client()
    status = client.get_run((folder / "mlflow_run").read_text()).info.status
    # As if the machine had died soon after its first checkpoint: rounds are run again.
    kept = (folder / "checkpoints").glob("round_*")
    _, *later = sorted(kept, key=lambda one: int(one.name.removeprefix("round_")))
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    end = before[-1].rounds + 3
    again = start("resume", str(folder), "--json", "--rounds", str(end))
    _, errors = again.communicate(timeout=HANG)
    assert again.returncode == 0, errors
    return Left(folder, status, before, list(read_records(folder)))


def test_the_run_was_left_and_went_on(left):
    assert len(left.before) >= 8
    assert [one.rounds for one in left.after] == list(range(len(left.before) + 3))


def test_mlflow_has_one_run_with_the_settings_and_every_round(left, server):
    client = server.client()
    experiment = client.get_experiment_by_name("fedbilevel")
    named = [
        one
        for one in client.search_runs([experiment.experiment_id])
        if one.info.run_name == "asked"
    ]
    assert [one.info.run_id for one in named] == [
        (left.folder / "mlflow_run").read_text()
    ]
    assert left.status == "KILLED"
    assert named[0].info.status == "FINISHED"
    written = tomllib.loads((left.folder / "experiment.toml").read_text())
    params = named[0].data.params
    assert params["algorithm.name"] == "FedBiO"
    assert params["algorithm.learning_rate"] == "0.1"
    # MLflow keeps the parameters that a run began with; its folder knows the newest.
    assert params["rounds"] == "2000"
    assert written["rounds"] == left.after[-1].rounds
    assert not [name for name in params if name.startswith("tracking")]
    for name in numbers(left.after[0]):
        history = client.get_metric_history(named[0].info.run_id, name)
        found = {one.step: one.value for one in history}
        wanted = {one.rounds: numbers(one)[name] for one in left.after}
        if name == "spent/seconds":
            assert found.keys() == wanted.keys()
        else:
            assert found == wanted


def test_tensorboard_shows_every_round_once(left):
    from tensorboard.backend.event_processing import (
        event_accumulator,
    )

    events = event_accumulator.EventAccumulator(
        str(left.folder), size_guidance={"scalars": 0}
    )
    events.Reload()
    for name in numbers(left.after[0]):
        found = [(one.step, one.value) for one in events.Scalars(name)]
        wanted = [(one.rounds, numbers(one)[name]) for one in left.after]
        assert [step for step, _ in found] == [step for step, _ in wanted]
        if name != "spent/seconds":
            assert [one for _, one in found] == pytest.approx(
                [one for _, one in wanted], rel=1e-6
            )
    (text,) = events.Tensors("settings/text_summary")[-1:]
    assert b"algorithm.name = FedBiO" in text.tensor_proto.string_val[0]


def test_wandb_has_both_parts_under_one_id(left):
    files = sorted((left.folder / "wandb").glob("offline-run-*/run-*.wandb"))
    name = (left.folder / "wandb_run").read_text()
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
