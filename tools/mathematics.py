"""Hook: typeset formulas by KaTeX while the site is built.

`tools/katex/katex.min.js` is KaTeX 0.19.1 as its npm package has it, run by QuickJS.
Neither Node.js nor a script in the reader's browser is needed. The style sheet and the
fonts are in `docs/katex`; its `LICENSE.txt` has the licences.
"""

import html
import json
import logging
import re
from functools import cache
from pathlib import Path
from typing import Any

import quickjs
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.mathematics")
KATEX = Path(__file__).parent / "katex" / "katex.min.js"
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Typeset every formula that `pymdownx.arithmatex` marked."""

    def formula(match: re.Match[str], display: bool) -> str:
        latex = html.unescape(match[1]).strip()
        try:
            return typeset(latex, display)
        except ValueError as error:
            LOG.warning(
                "%s: KaTeX cannot typeset %s. %s", page.file.src_uri, latex, error
            )
            return match[0]

    content = DISPLAY.sub(lambda match: formula(match, True), content)
    return INLINE.sub(lambda match: formula(match, False), content)


def typeset(latex: str, display: bool) -> str:
    """Return a formula as HTML, with MathML for screen readers.

    Raises:
        ValueError: if KaTeX does not know a command of the formula.
    """
    options = json.dumps({"displayMode": display, "strict": "error"})
    call = f"katex.renderToString({json.dumps(latex)}, {options})"
    try:
        # As JSON: the wrapper of QuickJS rejects strings made by concatenation.
        drawn: str = json.loads(_katex().eval(f"JSON.stringify({call})"))
    except quickjs.JSException as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    return drawn


@cache
def _katex() -> "quickjs.Context":
    context = quickjs.Context()
    context.eval(KATEX.read_text("utf-8"))
    return context
