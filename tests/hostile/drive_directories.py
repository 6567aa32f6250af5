"""Run the command of every damaged run directory, in one process."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import stat
import sys
import traceback
from pathlib import Path
from typing import Any

from fedbilevel.__main__ import main as command_line
from tests.hostile.directories import CASES, EXPERIMENT, PRECIOUS, PROBLEM, RUN, Case

LONGEST = 600
"""Seconds after which a command counts as hanging, even on a busy machine."""


def hang(number: int, frame: object) -> None:
    # Commands do not catch this error.
    raise AssertionError("it hangs")


def call(arguments: list[str]) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(LONGEST)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | str | None = command_line(arguments)
        except SystemExit as error:
            code = error.code
        except BaseException:
            traceback.print_exc()
            code = -1
        finally:
            signal.alarm(0)
    return {"code": code, "output": out.getvalue() + err.getvalue()}


def contents(directory: Path) -> dict[str, str]:
    """Return type and content of the files in a directory, by name."""
    result = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            about = f"link to {os.readlink(path)}"
        elif stat.S_ISREG(mode):
            about = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            about = str(stat.S_IFMT(mode))
        result[os.fsdecode(os.fsencode(path.relative_to(directory)))] = about
    return result


def outcome(case: Case, run: Path, box: Path) -> dict[str, Any]:
    box.mkdir()
    os.chdir(box)
    shutil.copytree(run, RUN)
    Path(PRECIOUS).write_text("mine")
    case.damage(Path(RUN))
    before = contents(box)
    result = call(list(case.command))
    after = contents(box)
    changed = sorted(
        name for name in before | after if before.get(name) != after.get(name)
    )
    os.chdir(run)
    shutil.rmtree(box)
    return {**result, "changed": changed}


def main(directory: Path) -> None:
    signal.signal(signal.SIGALRM, hang)
    os.chdir(directory)
    (directory / "problem.py").write_text(PROBLEM.replace("METRIC", "1.0"))
    (directory / "a.toml").write_text(EXPERIMENT)
    result = call(["run", "a.toml"])
    assert result["code"] in (0, 3), result
    run = directory / "runs" / "a"
    outcomes: list[dict[str, Any] | None] = []
    for number, case in enumerate(CASES):
        if case.root or os.geteuid():
            outcomes.append(outcome(case, run, directory / str(number)))
        else:
            outcomes.append(None)
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
