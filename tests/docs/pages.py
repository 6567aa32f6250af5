"""The code blocks of a page, and a program that runs them in order.

`python tests/docs/pages.py PAGE` runs a page in the current directory, as a reader
would: Python in one interpreter, commands in a shell; blocks that begin with a comment
with a file name (`# ridge.py`) are written to that file. Sessions (`>>>`) must print
their quoted output; a part of an experiment file must be valid.
"""

import doctest
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tools.pages import Block, Fate, blocks

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_page(page: Path) -> None:
    """Run the blocks of a page in order, in this directory and interpreter."""
    namespace = sys.modules["__main__"].__dict__
    for block in blocks(page.read_text()):
        match block.fate:
            case Fate.WRITTEN:
                assert block.file
                Path(block.file).write_text(block.text)
            case Fate.COMMANDS if block.commands:
                sys.stdout.flush()
                command = ["bash", "-euo", "pipefail", "-c", block.commands]
                # nvflare writes its certificate requests to the home directory.
                home = {"HOME": os.getcwd()} if "nvflare" in block.commands else {}
                subprocess.run(command, check=True, env=os.environ | home)
            case Fate.EXECUTED:
                # Leading empty lines, so that a traceback has the page's line numbers.
                program = "\n" * block.line + block.text
                exec(compile(program, page, "exec", dont_inherit=True), namespace)
            case Fate.SESSION:
                compare(block, page, namespace)
            case Fate.READ:
                read_part(block.text)


def compare(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run a session, and compare its output."""
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, page.name, str(page), block.line
    )
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    if runner.run(test, out=report.append, clear_globs=False).failed:
        raise AssertionError("".join(report))
    namespace.update(test.globs)


def read_part(text: str) -> None:
    """Read a part of an experiment file, completed by the simplest algorithm."""
    # Imported here, so that parsing a page does not import JAX.
    import tomli_w

    from fedbilevel.experiments.files.read import read_experiment

    experiment = tomllib.loads(text)
    simplest = {"name": "FedBiO", "learning_rate": 0.1}
    experiment["algorithm"] = simplest | experiment.get("algorithm", {})
    file = Path("part.toml")
    file.write_text(tomli_w.dumps(experiment))
    read_experiment(file)


if __name__ == "__main__":
    sys.path[0] = ""  # as for a program in this directory
    run_page(Path(sys.argv[1]))
