"""Event files of TensorBoard and files of W&B, of a stopped and resumed run.

`test_server` has them for whole commands, with an MLflow server.
"""

import pytest

from fedbilevel import Costs
from fedbilevel.tracking import Record, TensorBoard, WeightsAndBiases, track
from fedbilevel.tracking.protocol import Tracker
from tests.tracking.wandb_files import wandb_history, wandb_records

pytestmark = pytest.mark.process


def record_of(rounds: int) -> Record:
    return Record(rounds, 0.1 * rounds, Costs(), {"loss": 1 / (1 + rounds)})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory):
    """A run directory: rounds 0 to 2, then again from round 1."""
    directory = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        environment.setenv("WANDB_SILENT", "true")
        for resume, rounds in ((False, range(3)), (True, range(1, 4))):
            trackers: list[Tracker] = [
                TensorBoard(directory),
                WeightsAndBiases("mine", directory),
            ]
            with track(trackers, "tracked", {"rate": 0.1}, resume=resume) as record:
                for number in rounds:
                    record(record_of(number))
    return directory


@pytest.mark.nightly
def test_tensorboard_shows_every_round_once(directory):
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(
        str(directory), size_guidance={"scalars": 0}
    )
    events.Reload()
    content = [(one.step, one.value) for one in events.Scalars("loss")]
    assert content == [(n, pytest.approx(1 / (1 + n))) for n in range(4)]
    (text,) = events.Tensors("settings/text_summary")[-1:]
    assert b"rate = 0.1" in text.tensor_proto.string_val[0]


@pytest.mark.nightly
def test_wandb_has_both_parts_under_one_id(directory):
    first, second = sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))
    assert first.name == second.name
    for file, rounds in ((first, range(3)), (second, range(1, 4))):
        history = wandb_history(file)
        assert [row["rounds"] for row in history] == list(rounds)
        assert [row["loss"] for row in history] == [1 / (1 + n) for n in rounds]
    (run,) = [item.run for item in wandb_records(first) if item.run.run_id]
    assert run.project == "mine"
