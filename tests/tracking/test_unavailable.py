"""Trackers without their server or library.

Servers that are in trouble: `test_server`.
"""

import os
import subprocess
import sys

import pytest

from fedbilevel.__main__ import main
from fedbilevel.tracking import (
    MLflow,
    TensorBoard,
    WeightsAndBiases,
)
from tests.commands.typing_in import as_for_users
from tests.tracking.commands import FILE
from tests.waiting import HANG

pytestmark = pytest.mark.process


def test_a_server_that_is_away_at_the_start_is_reported_at_once(tmp_path, capsys):
    file = tmp_path / "asked.toml"
    file.write_text(FILE.partition("[tracking]")[0])
    with as_for_users():
        arguments = ["run", str(file), "--tracking.mlflow", "http://127.0.0.1:1"]
        assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(
        "fedbilevel run: tracking.mlflow: no MLflow server responds at "
        "http://127.0.0.1:1. Start one there (mlflow server), or omit "
        "tracking.mlflow.\n"
    )


def test_an_invalid_address_of_a_server_is_reported(tmp_path):
    with pytest.raises(ConnectionError, match="MLflow at gopher://old cannot be used"):
        MLflow("gopher://old", tmp_path).begin("wrong", {}, resume=False)


def test_a_missing_login_to_wandb_is_reported_with_its_cure(tmp_path):
    program = (
        "from pathlib import Path; from fedbilevel.tracking import WeightsAndBiases;"
        "WeightsAndBiases('federated', Path('run')).begin('first', {}, resume=False)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "HOME": str(tmp_path)},
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
def test_a_missing_library_is_reported_with_its_extra(
    tracker, library, extra, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    created = tracker(tmp_path) if tracker is TensorBoard else tracker("any", tmp_path)
    with pytest.raises(ImportError, match=rf"pip install 'fedbilevel\[{extra}\]'"):
        created.begin("first", {}, resume=False)


def test_no_library_of_a_tracker_is_imported_before_it_begins():
    program = (
        "import sys, fedbilevel.tracking, fedbilevel.commands.run;"
        "print({'mlflow', 'wandb', 'tensorboardX', 'tensorboard'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG
    )
    assert ended.stdout == "set()\n"
