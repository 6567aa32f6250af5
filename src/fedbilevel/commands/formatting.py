"""Numbers and tables as a person reads them in a terminal."""

from collections.abc import Container, Sequence


def short(number: float | int) -> str:
    """Return a number of three digits with a unit.

    Example:
        >>> short(1234567)
        '1.23M'
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"


def aligned(
    rows: Sequence[Sequence[str]], numbers: Container[int] | None = None
) -> str:
    """Return a table.

    Args:
        rows: of equally many cells.
        numbers: the columns that are flush right; by default all but the first.

    Example:
        >>> print(aligned([["run", "loss"], ["first", "0.5"]]))
        run    loss
        first   0.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = range(1, len(widths)) if numbers is None else numbers
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
