"""The exchange that messages, signatures and keys belong to."""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_NAME = 64
"""Maximum characters of a site's name: that of a common name in a certificate."""
MOST_SITES = 1000
"""Maximum sites of a roster: one header of the wire format then has every name."""
PART = struct.Struct("<Q")


@dataclass(frozen=True)
class Context:
    """The run, the round, the exchange and the roster of one secure sum.

    Args:
        run: name of the run.
        round_number: number of the round.
        exchange: number of the exchange in its round.
        roster: names of all sites that may participate; their order has no meaning.
        binding: digest of all else that the sites must see alike: the task, the
            weights, the attempt. Sites with another one refuse each other's messages.

    Raises:
        ValueError: if a name or a number is not valid.

    Example:
        >>> context = Context("a1", 3, 0, ("north", "south", "east", "west"))
        >>> context.threshold
        3
        >>> context.position("north")
        2
    """

    run: str
    round_number: int
    exchange: int
    roster: tuple[str, ...]
    binding: bytes = b""

    def __post_init__(self) -> None:
        if not 0 < len(self.run) <= LONGEST_NAME:
            raise ValueError(
                f"The run name {self.run!r} has {len(self.run)} characters. Use 1 to "
                f"{LONGEST_NAME}."
            )
        for number in (self.round_number, self.exchange):
            if not 0 <= number < 2**31:
                raise ValueError(
                    f"The round or exchange number {number} is out of range. Use 0 to "
                    f"{2**31 - 1}."
                )
        if not 2 <= len(self.roster) <= MOST_SITES:
            raise ValueError(
                f"The roster has {len(self.roster)} sites. A secure sum needs 2 to "
                f"{MOST_SITES}."
            )
        for name in self.roster:
            if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
                raise ValueError(
                    f"The roster has the site name {name!r}. Use 1 to {LONGEST_NAME} "
                    "printable characters."
                )
        if len(set(self.roster)) < len(self.roster):
            raise ValueError(
                f"The roster {list(self.roster)} has a name twice. List each site once."
            )
        object.__setattr__(self, "roster", tuple(sorted(self.roster)))

    @property
    def threshold(self) -> int:
        """The smallest number of sites with which the exchange continues."""
        return threshold(len(self.roster))

    def position(self, name: str) -> int:
        """Return the number of a site's share: 1 for the first site of the roster."""
        return self.roster.index(name) + 1

    def encode(self) -> bytes:
        """Return the context as canonical bytes, with a digest of the roster."""
        roster = hashlib.sha256(joined(*(name.encode() for name in self.roster)))
        return json.dumps(
            {
                "run": self.run,
                "round": self.round_number,
                "exchange": self.exchange,
                "roster": roster.hexdigest(),
                "binding": self.binding.hex(),
            }
        ).encode()


def threshold(sites: int) -> int:
    """Return ⌈2n/3⌉, or the smallest majority where that is more.

    Two sets of this size have a site in common. So two lists of survivors with this
    many signatures each need a site that signs both.

    Example:
        >>> [threshold(sites) for sites in (2, 3, 4, 5, 6, 32)]
        [2, 2, 3, 4, 4, 22]
    """
    return max(-(-2 * sites // 3), sites // 2 + 1)


def joined(*parts: bytes) -> bytes:
    """Return parts with their lengths, so that other parts give other bytes.

    Example:
        >>> joined(b"ab", b"c") == joined(b"a", b"bc")
        False
    """
    return b"".join(PART.pack(len(part)) + part for part in parts)


def names_joined(names: Sequence[str]) -> bytes:
    """Return names as bytes that other names do not give.

    Example:
        >>> names_joined(["a", "b"]) == names_joined(["ab"])
        False
    """
    return joined(*(name.encode() for name in names))
