"""Hook: formulas become MathML, which browsers draw without a script or a font."""

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.mathematics")
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
UNKNOWN = re.compile(r"<m[a-z]+>(\\\w+)</m")
"""A command that the converter does not know, and passes on as it is."""


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Turn what `pymdownx.arithmatex` marked into MathML."""

    def formula(match: re.Match[str], display: str) -> str:
        latex = html.unescape(match[1]).strip()
        drawn: str = convert(latex, display=display)
        for command in UNKNOWN.findall(drawn):
            LOG.warning(
                "%s: no MathML for %s; write the formula without it.",
                page.file.src_uri,
                command,
            )
        return drawn

    content = DISPLAY.sub(lambda match: formula(match, "block"), content)
    return INLINE.sub(lambda match: formula(match, "inline"), content)
