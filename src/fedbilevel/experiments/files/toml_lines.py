"""Line numbers of keys in a TOML file."""

import re

# They match stripped lines, and greedily, so that each takes one pass over a line.
_HEADER = re.compile(r"\[\[?(?P<path>[^\]]+)\]")
_KEY = re.compile(r"(?P<path>[A-Za-z0-9_\-.\"' \t]+)=")


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    r"""Return the line of a key, or of the nearest table above it that has one.

    Args:
        text: text of a valid TOML file.
        path: the key and the tables around it, outermost first.

    Example:
        >>> line_of('rounds = 3\n[data]\nname = "digits"', ("data", "name"))
        3
        >>> line_of('data = {name = "digits"}', ("data", "name"))
        1
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _parts(header["path"])
            lines.setdefault(table, number)
        elif key:
            lines.setdefault(table + _parts(key["path"]), number)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in path.split("."))
