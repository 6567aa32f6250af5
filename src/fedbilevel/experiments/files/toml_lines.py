"""Where in a TOML file a key stands."""

import re

# Of lines without spaces at their ends, and greedy: each takes one pass over a line.
_HEADER = re.compile(r"\[\[?(?P<path>[^\]]+)\]")
_KEY = re.compile(r"(?P<path>[A-Za-z0-9_\-.\"' \t]+)=")


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    r"""Return the line of a key, or of the nearest table above it that has one.

    Args:
        text: of a TOML file that can be parsed.
        path: the key and the tables around it, the outermost first.

    Example:
        >>> line_of('rounds = 3\n[data]\nname = "digits"', ("data", "name"))
        3
        >>> line_of('data = {name = "digits"}', ("data", "name"))
        1
    """
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _parts(header["path"])
            found.setdefault(table, number)
        elif key:
            found.setdefault(table + _parts(key["path"]), number)
    while path and path not in found:
        path = path[:-1]
    return found.get(path)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in path.split("."))
