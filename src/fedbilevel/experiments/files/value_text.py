"""The TOML text of values, for files and for messages."""

import json
from typing import Any

LONGEST = 60
"""Maximum number of characters of a value in a message."""


def value_text(value: Any) -> str:
    """Return the TOML text of a plain value, on one line.

    Example:
        >>> value_text({"name": "adam", "nesterov": True})
        '{name = "adam", nesterov = true}'
    """
    if isinstance(value, dict):
        pairs = (f"{key} = {value_text(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    return json.dumps(value) if isinstance(value, bool | str) else str(value)


def short_text(value: Any) -> str:
    """Return the TOML text of a value, shortened for a message.

    Example:
        >>> short_text(10**100)
        '100000000000000000000000000000000000000000000000000000000...'
    """
    try:
        text = value_text(value)
    except ValueError:
        # Python refuses to print more than 4300 digits.
        return "a number of more than 4300 digits"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
