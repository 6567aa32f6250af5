"""A program that carries out the code blocks of a page in their order.

`python tests/docs/pages.py PAGE` runs a page in the folder it is started in, as its
reader would: Python in one interpreter, commands in a shell, and blocks that begin with
a comment naming a file (`# ridge.py`) are written to that file. Sessions (`>>>`) must
print what they say; a piece of an experiment file must be one that can be read.
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


def carry_out(page: Path) -> None:
    """Do what the page says, in its order, in this folder and interpreter."""
    namespace = sys.modules["__main__"].__dict__
    for block in blocks(page.read_text()):
        match block.fate:
            case Fate.WRITTEN:
                assert block.file
                Path(block.file).write_text(block.text)
            case Fate.COMMANDS if block.commands:
                sys.stdout.flush()
                command = ["bash", "-euo", "pipefail", "-c", block.commands]
                # nvflare notes at home which certificates were asked for.
                home = {"HOME": os.getcwd()} if "nvflare" in block.commands else {}
                subprocess.run(command, check=True, env=os.environ | home)
            case Fate.EXECUTED:
                # Empty lines before it, so that a traceback names the page's line.
                program = "\n" * block.line + block.text
                exec(compile(program, page, "exec", dont_inherit=True), namespace)
            case Fate.SESSION:
                compare(block, page, namespace)
            case Fate.READ:
                read_piece(block.text)


def compare(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Hold a session to what it prints."""
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, page.name, str(page), block.line
    )
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    if runner.run(test, out=report.append, clear_globs=False).failed:
        raise AssertionError("".join(report))
    namespace.update(test.globs)


def read_piece(text: str) -> None:
    """Read a piece of an experiment file, completed by the simplest algorithm."""
    # Here, so that finding the blocks of a page loads no JAX.
    import tomli_w

    from fedbilevel.experiments.files.read import read_experiment

    asked = tomllib.loads(text)
    simplest = {"name": "FedBiO", "learning_rate": 0.1}
    asked["algorithm"] = simplest | asked.get("algorithm", {})
    piece = Path("piece.toml")
    piece.write_text(tomli_w.dumps(asked))
    read_experiment(piece)


if __name__ == "__main__":
    sys.path[0] = ""  # as for a program in this folder
    carry_out(Path(sys.argv[1]))
