"""System calls, as strace reports them, when checkpoints replace each other.

The tests of `test_power` observe Python's calls; these tests observe the calls of any
library. A model of a disk executes the calls. It keeps only synchronised data, and
may lose its power before any call.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.process
MAKING = "openat", "creat", "mkdir", "mkdirat"
WRITING = "write", "pwrite64", "writev", "ftruncate"
SYNCHRONISING = "fsync", "fdatasync"
RENAMING = "rename", "renameat", "renameat2"
REMOVING = "unlink", "unlinkat", "rmdir"
ALL = *MAKING, *WRITING, *SYNCHRONISING, *RENAMING, *REMOVING
PROGRAM = """
import sys
from pathlib import Path
from fedbilevel import Checkpoints, FedBiO, run
from tests import quadratic
from tests.engines import federation

checkpoints = Checkpoints(Path(sys.argv[1]) / "kept", every=1, keep=1)
what = quadratic.problem(), FedBiO(0.1), federation.in_memory(), *federation.START
list(run(*what, rounds=4, checkpoints=checkpoints))
"""
LINE = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+= (\d+)")
PATH = re.compile(r'"([^"]*)"|<(/[^>]*)>')
RESUMED = re.compile(r"^\d+\s+<\.\.\. \w+ resumed>(.*)$")
UNFINISHED = "<unfinished ...>"
READ = "state", "notes", "digests.json"
"""The files of a checkpoint that are read; Orbax writes further files."""


class Call(NamedTuple):
    """A successful system call.

    Attributes:
        name: name of the call.
        paths: paths in its arguments.
    """

    name: str
    paths: tuple[Path, ...]


def calls(lines: Sequence[str]) -> Iterator[Call]:
    """Yield the calls of a trace, in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in lines:
        process = line.split(maxsplit=1)[0]
        if line.endswith(UNFINISHED):
            begun[process] = line.removesuffix(UNFINISHED)
            continue
        resumed = RESUMED.match(line)
        if resumed:
            line = begun.pop(process, "") + resumed[1]
        actual = LINE.match(line)
        if not actual or (actual[1] == "openat" and "O_CREAT" not in actual[2]):
            continue
        paths: list[Path] = []
        for named, opened in PATH.findall(actual[2]):
            # A name may be relative to the directory of the preceding descriptor.
            if named and paths and not named.startswith("/"):
                paths[-1] /= named
            elif named and paths and actual[1] not in RENAMING:
                paths[-1] = Path(named)
            else:
                paths.append(Path(named or opened))
        yield Call(actual[1], tuple(paths))


class Disk:
    """A disk that keeps only synchronised data.

    Attributes:
        pending: files with content, and names of files and directories, that a power
            loss would remove.
    """

    def __init__(self) -> None:
        self.pending: set[tuple[str, Path]] = set()

    def do(self, call: Call) -> None:
        """Execute a call."""
        first, last = call.paths[0], call.paths[-1]
        if call.name in MAKING:
            self.pending.add(("name", last))
        elif call.name in WRITING:
            self.pending.add(("content", first))
        elif call.name in SYNCHRONISING:
            self.pending = {
                (what, path)
                for what, path in self.pending
                if (what, path) != ("content", first)
                and not (what == "name" and path.parent == first)
            }
        elif call.name in RENAMING:
            self.pending = {
                (what, last / path.relative_to(first))
                if path.is_relative_to(first)
                else (what, path)
                for what, path in self.pending
            } | {("name", last)}
        elif call.name in REMOVING:
            self.pending = {
                (what, path)
                for what, path in self.pending
                if not path.is_relative_to(last)
            }

    def lost(self, checkpoint: Path) -> list[Path]:
        """Return the files of a checkpoint that a power loss would remove."""
        needed = [checkpoint / item for item in READ]
        return [
            path
            for _, path in self.pending
            if path in (checkpoint, checkpoint.parent)
            or any(path.is_relative_to(item) for item in needed)
        ]


def removals(lines: Sequence[str], directory: Path) -> int:
    """Return the number of removed checkpoints; a complete one must always remain."""
    disk, named, gone = Disk(), set[Path](), set[Path]()
    for name, paths in calls(lines):
        if paths == (directory.parent,):
            disk.do(Call(name, paths))
        inside = [item for item in paths if item.is_relative_to(directory)]
        if not inside:
            continue
        checkpoint = directory.joinpath(*inside[-1].relative_to(directory).parts[:1])
        if name in REMOVING and checkpoint in named:
            named.discard(checkpoint)
            gone.add(checkpoint)
            lost = {item.name: disk.lost(item) for item in named}
            assert not all(lost.values()), f"{checkpoint.name} goes, and: {lost}"
        disk.do(Call(name, paths))
        if name in RENAMING and paths[-1].parent == directory:
            named.add(paths[-1])
            gone.discard(paths[-1])
    return len(gone)


def _can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_checkpoint_outlasts_a_loss_of_power_before_an_older_one_goes(tmp_path):
    if not _can_trace():
        pytest.skip("strace is not installed, or may not trace")
    trace = tmp_path / "trace"
    options = ["-f", "-y", "-s", "0", "-e", f"trace={','.join(ALL)}", "-o", trace]
    program = [sys.executable, "-c", PROGRAM, tmp_path]
    subprocess.run(["strace", *options, *program], check=True, capture_output=True)
    lines = trace.read_text(errors="replace").splitlines()
    assert removals(lines, tmp_path / "kept") == 3
    # The model must detect a name that is not on the disk.
    without = [item for item in lines if not re.search(r"fsync\(\d+<[^>]*/kept>", item)]
    with pytest.raises(AssertionError, match="round_1 goes, and"):
        removals(without, tmp_path / "kept")
