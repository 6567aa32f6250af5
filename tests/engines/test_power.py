"""A run deletes files only after their replacements are on the disk."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedbilevel import Checkpoints, FedBiO, run
from fedbilevel.atomic_write import atomic_replace
from tests import quadratic
from tests.engines import federation
from tests.platforms import require_linux

Happened = list[tuple[str, str]]


@pytest.fixture
def happened(monkeypatch, tmp_path) -> Happened:
    """The synchronisations, renames and removals below a directory, in order."""
    require_linux()
    events: Happened = []
    below, synchronise = str(tmp_path), os.fsync

    def recorded(descriptor: int) -> None:
        events.append(("on disk", os.readlink(f"/proc/self/fd/{descriptor}")))
        synchronise(descriptor)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            events.append((event, os.fspath(arguments[0])))
            if event == "os.rename":
                events.append(("named", os.fspath(arguments[1])))

    monkeypatch.setattr(os, "fsync", recorded)
    sys.addaudithook(lambda *event: heard(*event) if below in str(event[1]) else None)
    return events


def test_a_file_is_on_the_disk_before_it_takes_a_name_and_its_name_after(
    happened, tmp_path
):
    file = tmp_path / "notes"
    with atomic_replace(file) as unfinished:
        unfinished.write_text("all")
    draft, directory = str(tmp_path / "unfinished-notes"), str(tmp_path)
    order = [entry for entry in happened if entry[0] != "os.remove"]
    assert order[-4:] == [
        ("on disk", draft),
        ("os.rename", draft),
        ("named", str(file)),
        ("on disk", directory),
    ]


@pytest.mark.slow
def test_a_checkpoint_is_on_the_disk_before_an_older_one_goes(happened, tmp_path):
    checkpoints = Checkpoints(tmp_path / "kept", every=1, keep=1)
    devices = federation.in_memory()
    what = quadratic.problem(), FedBiO(0.1), devices, *federation.START
    list(run(*what, rounds=3, checkpoints=checkpoints))
    named = {
        place: Path(path)
        for place, (event, path) in enumerate(happened)
        if event == "named" and Path(path).name.startswith("round_")
    }
    assert [path.name for path in named.values()] == ["round_1", "round_2", "round_3"]
    for place, path in named.items():
        on_disk = {name for event, name in happened[:place] if event == "on disk"}
        temporary = Path(happened[place - 1][1])
        for item in ("state", "notes"):
            held = [entry.relative_to(path) for entry in (path / item).rglob("*")]
            assert path.name != "round_3" or held
            assert {str(temporary / entry) for entry in held} <= on_disk
        assert str(temporary) in on_disk
        # The new name is synchronised before any older file is removed.
        later = happened[place:]
        name_kept = later.index(("on disk", str(path.parent)))
        older = [
            number
            for number, (event, gone) in enumerate(later)
            if event in ("os.remove", "os.rmdir", "shutil.rmtree")
            and "round_" in gone
            and path.name not in gone
        ]
        assert all(number > name_kept for number in older)
