"""Partition a table by a column: each value is a site, with its name."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedbilevel.datasets.groups import groups_of
from fedbilevel.plurals import count_noun

_LISTED = 5  # names in a message


class Sites(NamedTuple):
    """The rows of each site, and the sites that are too small.

    Attributes:
        names: name of each site.
        rows: row numbers of each site, in increasing order.
        small: number of rows of each site that was dropped or merged, by name.
        other: name of the site that has the rows of small sites; None if they were
            dropped.
    """

    names: tuple[str, ...]
    rows: list[Int[np.ndarray, "_"]]
    small: dict[str, int]
    other: str | None = None

    @property
    def report(self) -> str | None:
        """A sentence about the sites that are too small; None if there are none."""
        if not self.small:
            return None
        names = ", ".join(list(self.small)[:_LISTED])
        rest = len(self.small) - _LISTED
        names += f" and {rest} more" if rest > 0 else ""
        fate = "dropped" if self.other is None else f"merged into {self.other!r}"
        rows = count_noun(sum(self.small.values()), "row")
        return (
            f"{count_noun(len(self.small), 'small site')} with {rows} {fate}: {names}."
        )


def by_column(
    values: Iterable[Any], *, smallest: int = 1, other: str | None = None
) -> Sites:
    """Return the rows of each value of a column, as sites with names.

    Args:
        values: value of each row, as text or numbers: a column of a data frame, of a
            table of pyarrow or of a `Dataset`, or a list.
        smallest: smallest number of rows of a site. Smaller sites are dropped, or
            merged into one site; `small` of the result has their sizes.
        other: name of the site that receives the rows of small sites; None to drop
            these rows.

    Returns:
        The sites: numbers in their order, then other names in alphabetical order, and
        `other` last.

    Raises:
        ValueError: a value is missing, no site is large enough, or `other` is the name
            of a site or has fewer rows than `smallest`.

    Example:
        >>> from fedbilevel.data import by_column
        >>> states = ["Texas", "Maine", "Texas", "Ohio", "Texas"]
        >>> by_column(states).names
        ('Maine', 'Ohio', 'Texas')
        >>> sites = by_column(states, smallest=2, other="other states")
        >>> sites.names, [rows.tolist() for rows in sites.rows]
        (('Texas', 'other states'), [[0, 2, 4], [1, 3]])
        >>> sites.report
        "2 small sites with 2 rows merged into 'other states': Maine, Ohio."
    """
    groups, names = groups_of(values)
    return by_group(groups, names, smallest=smallest, other=other)


def by_group(
    groups: Int[np.ndarray, "rows"],
    names: Sequence[str],
    *,
    smallest: int = 1,
    other: str | None = None,
) -> Sites:
    """Return the rows of each group as sites, in the order of the groups.

    Groups without rows are no sites. The arguments are those of `by_column`.

    Args:
        groups: group of each row, from 0.
        names: name of each group.
        smallest: smallest number of rows of a site.
        other: name of the site that receives the rows of small sites.

    Raises:
        ValueError: as for `by_column`.

    Example:
        >>> by_group(np.array([1, 1, 0]), ("north", "south"), smallest=2).small
        {'north': 1}
    """
    if smallest < 1:
        raise ValueError(
            f"smallest is {smallest}; give a number of rows of at least 1."
        )
    by_site = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=len(names))
    parts = np.split(by_site, np.cumsum(sizes)[:-1])
    present = [
        (name, part) for name, part in zip(names, parts, strict=True) if len(part)
    ]
    large = [(name, part) for name, part in present if len(part) >= smallest]
    small = {name: len(part) for name, part in present if len(part) < smallest}
    if small and other is not None:
        if other in dict(large):
            raise ValueError(
                f"other is {other!r}, which is the name of a site; choose another name."
            )
        merged = [part for name, part in present if name in small]
        large.append((other, np.sort(np.concatenate(merged))))
    for name, part in large[-1:]:
        if len(part) < smallest:
            raise ValueError(
                f"The small sites have {count_noun(len(part), 'row')} together, fewer "
                f"than smallest={smallest}, so they cannot be the site {name!r}. Lower "
                "smallest, or omit other to drop them."
            )
    if not large:
        most = max(small.values(), default=0)
        raise ValueError(
            f"No site has at least {count_noun(smallest, 'row')}; the largest has "
            f"{most}. Lower smallest."
        )
    kept_names, rows = zip(*large, strict=True)
    return Sites(kept_names, list(rows), small, other if small else None)
