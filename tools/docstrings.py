"""griffe extension: adapt the docstrings of this package to Markdown pages."""

import re
from typing import Any

import griffe

STAR = re.compile(r"(?<=[xyΦ])\*(?!\*)")
"""The star of y*(x), which Markdown would interpret as emphasis."""
EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
"""The heading of doctests; griffe recognises only the plural."""


class Docstrings(griffe.Extension):
    """An extension that replaces y* by y∗ and "Example" by "Examples"."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            text = STAR.sub("∗", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", text)
