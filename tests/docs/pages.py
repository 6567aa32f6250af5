"""The code blocks of a page, and a program that runs them in order.

`python tests/docs/pages.py PAGE` runs a page in the current directory, as a reader
would: Python in one interpreter, commands in a shell; blocks that begin with a comment
with a file name (`# ridge.py`) are written to that file. Sessions (`>>>`) must print
their quoted output; a part of an experiment file must be valid.
"""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>.*)$")
FILE = re.compile(r"# (\S+\.(?:py|toml|yml))")
RUN = re.compile(r"(fedbilevel|pytest|nvflare|openssl|tar|umask) |python [\w/]+\.py\b")
"""The beginning of commands that are run; their files are the page's or examples."""
SKIPPED = ("pip install ", "make ", "git clone ", "cd ")
"""Commands of the installation, which the tests do not repeat."""


class Fate(Enum):
    """The treatment of a block."""

    EXECUTED = "executed by Python"
    SESSION = "executed by Python, and its output compared"
    COMMANDS = "run by a shell"
    WRITTEN = "written to a file"
    READ = "read as a part of an experiment"
    MARKED = "marked as not for tests"
    OUTPUT = "no code"
    UNKNOWN = "neither run nor marked"


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        line: line number of the opening fence, from 1.
        language: first word after the fence.
        marked: True if the second word is `notest`.
        text: content of the block.
    """

    line: int
    language: str
    marked: bool
    text: str

    @property
    def file(self) -> str | None:
        """The file name in the first line, or None."""
        match = FILE.fullmatch(self.text.split("\n", 1)[0].strip())
        return match[1] if match else None

    @property
    def commands(self) -> str:
        """The commands for a shell, without prompts, output and skipped commands."""
        lines = _commands(self.text, prompted=self.language == "console")
        return "\n".join(line for line in lines if not line.startswith(SKIPPED))

    @property
    def fate(self) -> Fate:
        """The treatment of the block."""
        if self.marked:
            return Fate.MARKED
        if self.language in ("", "text", "json"):
            return Fate.OUTPUT
        if self.language in ("python", "toml", "yaml") and self.file:
            return Fate.WRITTEN
        if self.language == "python":
            return Fate.SESSION if self.text.startswith(">>>") else Fate.EXECUTED
        if self.language == "toml":
            return Fate.READ
        if self.language in ("bash", "console"):
            known = all(RUN.match(line) for line in self.commands.splitlines())
            return Fate.COMMANDS if known else Fate.UNKNOWN
        return Fate.UNKNOWN


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page's text."""
    opening: re.Match[str] | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, start, lines = fence, number, []
        elif (
            fence and not fence["info"] and len(fence["marks"]) >= len(opening["marks"])
        ):
            language, *options = opening["info"].split() or [""]
            text = "\n".join(lines) + "\n"
            yield Block(start, language, options == ["notest"], text)
            opening = None
        else:
            lines.append(line.removeprefix(opening["indent"]))


def _commands(text: str, prompted: bool) -> Iterator[str]:
    """Yield whole commands, continued lines joined."""
    lines = iter(text.splitlines())
    for line in lines:
        if prompted:
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        while line.endswith("\\"):
            line = line[:-1] + next(lines).strip()
        if line.strip() and not line.startswith("#"):
            yield line


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
