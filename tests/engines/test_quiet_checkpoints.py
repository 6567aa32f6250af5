"""Orbax writes checkpoints without warnings."""

import time
from typing import Any

import pytest
from orbax.checkpoint._src.metadata import checkpoint as metadata

from fedbilevel import Checkpoints, FedBiO, run
from tests import quadratic
from tests.engines import federation


@pytest.mark.slow
def test_nothing_is_read_before_it_is_written(tmp_path, monkeypatch, caplog):
    store: Any = metadata._NonBlockingMetadataStore
    write = store._write_and_log

    def late(*arguments: Any) -> None:
        time.sleep(0.2)  # the reading thread comes first
        write(*arguments)

    monkeypatch.setattr(store, "_write_and_log", late)
    list(
        run(
            quadratic.problem(),
            FedBiO(0.1),
            federation.in_memory(),
            *federation.START,
            rounds=2,
            checkpoints=Checkpoints(tmp_path, every=1),
        )
    )
    assert {directory.name for directory in tmp_path.iterdir()} == {
        "round_1",
        "round_2",
    }
    output = [item.getMessage() for item in caplog.records if item.name == "absl"]
    assert output == []
