"""Code blocks of a page of the documentation, and how tests treat each of them."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>.*)$")
FILE = re.compile(r"# (\S+\.(?:py|toml|yml))")
RUN = re.compile(
    r"(PYTHONPATH=\. )?(fedbilevel|pytest|nvflare|openssl|tar|umask) "
    r"|python [\w/]+\.py\b"
)
"""Commands that tests run; Python files are those of the page or examples."""
SKIPPED = ("pip install ", "make ", "git clone ", "cd ")
"""Commands that install the package: the machine of the tests has it installed."""


class Fate(Enum):
    """Treatment of a block by the tests."""

    EXECUTED = "executed by Python"
    SESSION = "executed by Python, and its output compared"
    COMMANDS = "run by a shell"
    WRITTEN = "written to a file"
    READ = "read as a part of an experiment file"
    MARKED = "marked as not for tests"
    OUTPUT = "output, not code"
    UNKNOWN = "neither run nor marked"


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        line: line of the page with the opening fence, from 1.
        language: first word after the fence.
        marked: whether the second word is `notest`.
        text: content of the block.
    """

    line: int
    language: str
    marked: bool
    text: str

    @property
    def file(self) -> str | None:
        """File name in the first line, or None."""
        match = FILE.fullmatch(self.text.split("\n", 1)[0].strip())
        return match[1] if match else None

    @property
    def commands(self) -> str:
        """Commands for a shell, without prompts, output and installation."""
        lines = _commands(self.text, prompts=self.language == "console")
        return "\n".join(line for line in lines if not line.startswith(SKIPPED))

    @property
    def fate(self) -> Fate:
        """Treatment of this block by the tests."""
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
    start, content = 0, list[str]()
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, start, content = fence, number, []
        elif (
            fence and not fence["info"] and len(fence["marks"]) >= len(opening["marks"])
        ):
            language, *words = opening["info"].split() or [""]
            yield Block(start, language, words == ["notest"], "\n".join(content) + "\n")
            opening = None
        else:
            content.append(line.removeprefix(opening["indent"]))


def _commands(text: str, prompts: bool) -> Iterator[str]:
    """Yield complete commands, with continued lines joined."""
    lines = iter(text.splitlines())
    for line in lines:
        if prompts:
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        while line.endswith("\\"):
            line = line[:-1] + next(lines).strip()
        if line.strip() and not line.startswith("#"):
            yield line
