"""Make all mistakes in one process; print exit codes and messages as JSON lines."""

import contextlib
import io
import json
import os
import shlex
import tempfile
from pathlib import Path

from tests.commands.mistakes import MISTAKES, Mistake
from tests.commands.mistakes.mistake import DONE


def answer(mistake: Mistake, finished_run: Path) -> dict[str, object]:
    """Make a mistake in a temporary directory; return exit code and message."""
    import shutil

    from fedbilevel.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    origin = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for name, text in mistake.files.items():
            Path(name).write_text(text)
        if "done.toml" in mistake.files:
            shutil.copytree(finished_run, "runs/done")
        mistake.before()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code: object = main(shlex.split(mistake.arguments))
        except SystemExit as stopped:
            code = stopped.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
        finally:
            os.chdir(origin)
    return {
        "name": mistake.name,
        "code": code,
        "message": err.getvalue() + out.getvalue(),
    }


def program() -> None:
    from fedbilevel.__main__ import main

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "done.toml"
        file.write_text(DONE)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["run", str(file), "--json"]) == 0
        finished_run = Path(directory) / "runs" / "done"
        for mistake in MISTAKES:
            print(json.dumps(answer(mistake, finished_run)), flush=True)


if __name__ == "__main__":
    program()
