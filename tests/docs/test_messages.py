"""Every error message of the source names what to do, or what is required.

The messages are collected from `raise` statements. `tests/commands/test_mistakes` and
`tests/hostile` check the ones that a user's mistake leads to, as they are printed.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.docs.test_words import SOURCES, parsed, title

pytestmark = pytest.mark.slow

INTERNAL = {
    "RefusedError",  # a reason for the other side of an exchange, which adds the cure
    "WorkerError",  # a reason that a site sends to the server
    "DamageError",  # a reason that the checkpoint store completes
    "AssertionError",
    "RunAborted",
    "NotImplementedError",
}
IMPERATIVES = (
    r"add|allow|ask|call|change|check|choose|compare|compute|connect|convert|copy|correct|"
    r"create|define|delete|divide|end|enrol|extend|fill|fix|free|give|increase|install|keep|"
    r"leave|let|list|load|look|lower|make|measure|move|name|number|omit|open|pass|plan|"
    r"provide|put|raise|read|reduce|regularise|remove|rename|renumber|repeat|replace|"
    r"restart|restore|resume|return|round|run|save|scale|see|select|set|shard|share|"
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
COMPLETED = re.compile(r"[:;.] ?\{(error)?\}[.)]?$|^\{error\}|^\{\} See \{\} --help\.$")
"""A message that begins or ends with the text of another one, which names the cure."""


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
            return "".join(map(part_text, parts))
        case _:
            return None


def part_text(part: ast.expr) -> str:
    """Return a part of an f-string, with {error} for the text of another error."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return "{error}" if ast.unparse(value) == "error" else "{}"


@cache
def messages() -> tuple[Message, ...]:
    return tuple(collected_messages())


def collected_messages() -> Iterator[Message]:
    for path in SOURCES:
        if str(path).endswith(FRAGMENTS):
            continue
        tree = parsed(path)
        functions = {
            n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from messages_of(node.exc, functions, title(path))


def messages_of(
    call: ast.Call, functions: dict[str, ast.FunctionDef], file: str
) -> Iterator[Message]:
    """Yield the message of an error, or of the function that returns it."""
    error = ast.unparse(call.func)
    if error in functions:
        for node in ast.walk(functions[error]):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                yield from messages_of(node.value, functions, file)
        return
    texts = [text for arg in call.args for text in texts_of(arg, functions)]
    if texts and error not in INTERNAL:
        yield Message(f"{file}:{call.lineno}", error, max(texts, key=len))


def texts_of(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """Return the text of an argument, or the texts that its function returns."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in functions:
        returns = ast.walk(functions[ast.unparse(node.func)])
        values = [n.value for n in returns if isinstance(n, ast.Return) and n.value]
        return [text for value in values if (text := literal(value))]
    text = literal(node)
    return [text] if text else []


def test_most_messages_are_collected():
    assert len(messages()) > 250


def test_every_message_names_a_cure():
    lacking = [
        f"{message.place}: {message.text}"
        for message in messages()
        if not any(
            pattern.search(message.text) for pattern in (CURE, REQUIREMENT, COMPLETED)
        )
    ]
    assert not lacking, "\n".join(lacking)
