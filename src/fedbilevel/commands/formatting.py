"""Formatting of numbers and tables for a terminal."""

from collections.abc import Container, Sequence

JSON_HELP = "print JSON lines instead of text"
"""Help of the option --json of all commands."""


def format_number(number: float | int) -> str:
    """Return a number with three digits and a unit prefix.

    Example:
        >>> format_number(1234567)
        '1.23M'
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"


def format_table(
    rows: Sequence[Sequence[str]], numbers: Container[int] | None = None
) -> str:
    """Return a table with aligned columns.

    Args:
        rows: rows with the same number of cells.
        numbers: indices of right-aligned columns; by default all but the first.

    Example:
        >>> print(format_table([["run", "loss"], ["first", "0.5"]]))
        run    loss
        first   0.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = range(1, len(widths)) if numbers is None else numbers
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
