"""Every error message of the source names what to do, or what is required.

The messages are collected from `raise` statements. `tests/commands/test_mistakes` and
`tests/hostile` check the ones that a user's mistake leads to, as they are printed.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.docs.test_words import SOURCES, parsed, title

INTERNAL = {
    "RefusedError",  # a reason for the other side of an exchange, which adds the cure
    "DamageError",  # a reason that the checkpoint store completes
    "AssertionError",
    "RunAborted",
    "NotImplementedError",
}
IMPERATIVES = (
    r"add|allow|ask|call|change|check|choose|compare|compute|connect|copy|correct|"
    r"create|delete|divide|end|enrol|fill|fix|free|give|increase|install|keep|"
    r"leave|let|list|load|lower|make|measure|move|name|number|omit|open|pass|plan|"
    r"provide|put|raise|read|reduce|regularise|remove|rename|repeat|replace|"
    r"restart|restore|resume|return|round|run|save|scale|see|set|shard|share|"
    r"shorten|sort|split|start|state|stop|sweep|tune|update|upgrade|use|wait|wrap|"
    r"write"
)
FRAGMENTS = ("checkpoints/arrays.py", "files/convert.py", "solution.py")
"""Modules whose errors are parts of messages that their callers complete."""
CURE = re.compile(
    rf"(^|[.;:,(—] |\b(or|and|then|so|to|must|first) )({IMPERATIVES})\b",
    re.IGNORECASE,
)
REQUIREMENT = re.compile(r"\bmust (be|have|lie|return)\b|\bneeds?\b|\bexpected\b")
"""A requirement is a cure: "rounds must be at least 1, but is 0"."""
COMPLETED = re.compile(r"[:;.] ?\{\}[.)]?$|^\{\}")
"""A message that ends with the text of another one, which names the cure."""


class Message(NamedTuple):
    """The text of a `raise` statement, with {} for each value."""

    place: str
    error: str
    text: str


def literal(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            texts = (p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
            return "".join(map(str, texts))
        case _:
            return None


def messages() -> Iterator[Message]:
    for path in SOURCES:
        if str(path).endswith(FRAGMENTS):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                error = ast.unparse(node.exc.func)
                texts = [text for arg in node.exc.args if (text := literal(arg))]
                if texts and error not in INTERNAL:
                    place = f"{title(path)}:{node.lineno}"
                    yield Message(place, error, max(texts, key=len))


def test_most_messages_are_collected():
    assert len(list(messages())) > 250


def test_every_message_names_a_cure():
    lacking = [
        f"{message.place}: {message.text}"
        for message in messages()
        if not any(
            pattern.search(message.text) for pattern in (CURE, REQUIREMENT, COMPLETED)
        )
    ]
    assert not lacking, "\n".join(lacking)
