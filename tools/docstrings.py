"""Extension of griffe: docstrings as this package writes them, made fit for a page."""

import re
from typing import Any

import griffe

STAR = re.compile(r"(?<=[xyΦ])\*(?!\*)")
"""As in y*(x), of which Markdown would make emphasis."""
EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
"""griffe knows a section with doctests by the plural alone."""


class Docstrings(griffe.Extension):
    """Write y∗ for y*, and "Examples" above doctests."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Look at every docstring once."""
        if obj.docstring:
            text = STAR.sub("∗", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", text)
