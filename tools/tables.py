"""Hook: mark cells of tables that hold sentences, so that phones give them width."""

import re
from typing import Any

CELL = re.compile(r"<td>(?=(.*?)</td>)", re.DOTALL)
CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
SENTENCE = 40
"""Characters, code aside, from which a cell counts as a sentence."""


def on_page_content(html: str, **_: Any) -> str:
    """Give cells with long text the class `sentence`."""
    return CELL.sub(_marked, html)


def _marked(cell: re.Match[str]) -> str:
    text = " ".join(TAG.sub("", CODE.sub("", cell[1])).split())
    return '<td class="sentence">' if len(text) >= SENTENCE else cell[0]
