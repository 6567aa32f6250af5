"""Hook: blocks that no test runs are marked for the tests, not for the reader."""

import re
from typing import Any

MARKED = re.compile(r"^( *```\w+) notest$", re.MULTILINE)
"""The opening line of a block that `tests/docs/test_code_blocks.py` leaves alone."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take the mark away, which the highlighter does not know."""
    return MARKED.sub(r"\1", markdown)
