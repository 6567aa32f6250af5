"""mkdocs hook: remove `notest` from code blocks and wrap lines of output."""

import re
from typing import Any

MARKED = re.compile(r"^( *```\w+) notest$", re.MULTILINE)
"""The opening line of a block that `tests/docs/test_code_blocks.py` skips."""

OUTPUT = re.compile(r"^( *)```text\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""A block with the output of a program."""

COLUMNS = re.compile(r"\S {2,}\S")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove `notest`, which the highlighter rejects, and wrap output in sentences."""
    return OUTPUT.sub(_wrap_output, MARKED.sub(r"\1", markdown))


def _wrap_output(block: re.Match[str]) -> str:
    """Return a block of output with the class `wrap`, unless it has columns."""
    indent, output = block.groups()
    if COLUMNS.search(output):
        return block.group()
    return f"{indent}``` {{ .text .wrap }}\n{output}{indent}```"
