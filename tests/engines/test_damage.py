"""Damaged checkpoints are never used, and never block new ones."""

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import CheckpointError, Checkpoints, Run, run
from fedbilevel.engines.checkpoints.digests import verified_notes
from tests.algorithms.table import at_night
from tests.engines.test_checkpoints import arguments, assert_same_bits, numbers


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory) -> tuple[Path, Any]:
    """Return a directory with checkpoints of 2 and 4 rounds, and the final state."""
    directory = tmp_path_factory.mktemp("sound")
    with jax.enable_x64(True):
        list(run(**arguments(rounds=4), checkpoints=Checkpoints(directory, every=2)))
        *_, expected = run(**arguments(rounds=5))
        return directory, numbers(expected)


def damage(path: Path, generator: np.random.Generator, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "flipped":
        for place in generator.integers(len(content), size=generator.integers(1, 4)):
            content[place] ^= int(generator.integers(1, 256))
    else:
        del content[int(generator.integers(len(content))) :]
    path.write_bytes(bytes(content))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*range(6), *at_night(*range(6, 60))])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    case, two_checkpoints, tmp_path, caplog
):
    sound, expected = two_checkpoints
    directory = tmp_path / "run"
    shutil.copytree(sound, directory)
    generator = np.random.default_rng(case)
    files = sorted(
        path for path in (directory / "round_4").rglob("*") if path.is_file()
    )
    files = [path for path in files if path.stat().st_size]
    victim = files[int(generator.integers(len(files)))]
    damage(victim, generator, "flipped" if case % 2 else "truncated")
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        *_, last = Run(**arguments(rounds=5)).resume(Checkpoints(directory, 2))
    assert_same_bits(numbers(last), expected)
    # Damaged checkpoints are renamed, and the new ones with their names are valid.
    assert {path.name for path in directory.glob("round_*")} == {
        "round_2",
        "round_4",
        "round_5",
    }
    for item in directory.glob("round_*"):
        verified_notes(item)
    part_of_the_state = victim.relative_to(directory / "round_4").parts[0] in (
        "state",
        "notes",
        "digests.json",
    )
    assert part_of_the_state == any("Skipped" in item for item in caplog.messages)


@pytest.mark.slow
def test_with_nothing_left_the_run_begins_again(two_checkpoints, tmp_path, caplog):
    directory = tmp_path / "run"
    shutil.copytree(two_checkpoints[0], directory)
    for digests in directory.glob("round_*/digests.json"):
        digests.unlink()
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        again = Run(**arguments(rounds=5)).resume(Checkpoints(directory, 2))
        assert [result.number for result in again] == [0, 1, 2, 3, 4]
    assert "has no readable checkpoint" in caplog.messages[-1]
    (end,) = Run(**arguments(rounds=5)).resume(Checkpoints(directory, 2))
    assert_same_bits(numbers(end), two_checkpoints[1])


@pytest.mark.slow
def test_a_checkpoint_that_may_not_be_read_is_not_taken_for_a_damaged_one(
    two_checkpoints, tmp_path, monkeypatch
):
    directory = tmp_path / "run"
    shutil.copytree(two_checkpoints[0], directory)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    # Tests that run as root may read every file.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read: Permission denied"):
        Run(**arguments(rounds=5)).resume(Checkpoints(directory))
