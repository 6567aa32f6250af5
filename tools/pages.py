"""The code blocks of a page of the documentation, and what becomes of each."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>.*)$")
FILE = re.compile(r"# (\S+\.(?:py|toml|yml))")
RUN = re.compile(r"(fedbilevel|pytest|nvflare|openssl|tar|umask) |python [\w/]+\.py\b")
"""What a command must begin with to be run: files are the page's own, or examples."""
LEFT_ALONE = ("pip install ", "make ", "git clone ", "cd ")
"""Commands about installing, which the machine that runs the tests has done."""


class Fate(Enum):
    """What becomes of a block."""

    EXECUTED = "executed by Python"
    SESSION = "executed by Python, and what it prints compared"
    COMMANDS = "run by a shell"
    WRITTEN = "written to a file"
    READ = "read as a piece of an experiment"
    MARKED = "marked as not for tests"
    OUTPUT = "no code"
    UNKNOWN = "neither run nor marked"


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        line: of the page, where the fence opens, from 1.
        language: the first word after the fence.
        marked: whether the second is `notest`.
        text: what it holds.
    """

    line: int
    language: str
    marked: bool
    text: str

    @property
    def file(self) -> str | None:
        """The file that its first line names, if it does."""
        named = FILE.fullmatch(self.text.split("\n", 1)[0].strip())
        return named[1] if named else None

    @property
    def commands(self) -> str:
        """What a shell is to run, without prompts, output and what is left alone."""
        lines = _commands(self.text, prompted=self.language == "console")
        return "\n".join(line for line in lines if not line.startswith(LEFT_ALONE))

    @property
    def fate(self) -> Fate:
        """What becomes of it."""
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
    began, inside = 0, list[str]()
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, began, inside = fence, number, []
        elif (
            fence and not fence["info"] and len(fence["marks"]) >= len(opening["marks"])
        ):
            language, *words = opening["info"].split() or [""]
            yield Block(began, language, words == ["notest"], "\n".join(inside) + "\n")
            opening = None
        else:
            inside.append(line.removeprefix(opening["indent"]))


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
