"""The exclusions of a job's sites, kept until the submitter has received them."""

from collections import Counter
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedbilevel.federation import Exchange

MOST_EXCLUSIONS = 8
"""Maximum number of exclusions of a site that a job reports: a site may send another
reason in every exchange, or answer every second one."""


class Exclusion(NamedTuple):
    """The first of consecutive exclusions of a site for one reason.

    Attributes:
        round_number: round, counted from 0.
        site: name of the site.
        reason: reason for the exclusion.

    Example:
        >>> str(Exclusion(3, "west", "did not answer in time"))
        'Round 3: west is excluded: did not answer in time'
    """

    round_number: int
    site: str
    reason: str

    def __str__(self) -> str:
        return f"Round {self.round_number}: {self.site} is excluded: {self.reason}"


class ExclusionNotices:
    """The exclusions of a job in their order, and none like that site's last one.

    A site that has counted since then is reported again. A status report has those that
    the submitter has not received. The newest exchange alone would not show a site that
    is no longer contacted.

    Example:
        >>> notices = ExclusionNotices()
        >>> late = {"west": "did not answer in time"}
        >>> for number in range(3):
        ...     notices.note(Exchange(number, 0, 0.1, ["east"], late, [], 300, 200))
        >>> [str(exclusion) for exclusion in notices.after(0)]
        ['Round 0: west is excluded: did not answer in time']
        >>> notices.after(1)
        []
    """

    def __init__(self) -> None:
        self._exclusions: list[Exclusion] = []
        self._reasons: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def note(self, exchange: Exchange) -> None:
        """Note the exclusions of an exchange."""
        for site in exchange.counted:
            self._reasons.pop(site, None)
        for site, reason in exchange.excluded.items():
            most = self._counts[site] == MOST_EXCLUSIONS
            if most or self._reasons.get(site) == reason:
                continue
            self._reasons[site] = reason
            self._counts[site] += 1
            self._exclusions.append(Exclusion(exchange.round_number, site, reason))

    def after(self, count: int) -> list[Exclusion]:
        """Return the exclusions after the first `count` ones."""
        return self._exclusions[max(0, count) :]


def exclusions_in(file: Path, known: Set[str]) -> list[Exclusion]:
    """Return the exclusions in a log of exchanges, as `ExclusionNotices` lists them.

    Args:
        file: log of exchanges.
        known: lines to ignore.

    Example:
        >>> exclusions_in(Path("/dev/null"), set())
        []
    """
    notices = ExclusionNotices()
    for line in file.read_text().splitlines():
        # A crash may leave the last line unfinished.
        with suppress(ValueError, TypeError):
            if line not in known:
                notices.note(Exchange.parse(line))
    return notices.after(0)
