"""The record of secure sums that a site has signed, in all runs and processes."""

import json
from collections.abc import Mapping

from fedbilevel.atomic_write import append, read_appended
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site_rules import RULES
from fedbilevel.federation.transport import RefusedError, readable

SUMS = "sums.txt"
"""File of a site with a line for each secure sum of any run that it has signed."""
MOST_OF_NAMES = 100
"""Maximum characters of the names of a sum's sites in a message, so that the submitter
also gets its end."""


class SumRecord:
    """The secure sums that a site has signed, at most one for each of its uploads.

    The difference of two sums of the same uploads, over other survivors, is the upload
    of the sites that are in one of them only. The same sum again reveals nothing new.
    The record outlives run directories, and all jobs of the kit share it, since a
    server names runs and starts jobs.

    Args:
        most_second_sums: number of sums in a run that may be second sums of an upload.
        answers: counter of the site, whose directory and lock the record shares.

    Example:
        >>> sums = SumRecord(0, ExchangeCounter())
        >>> sums.admit("first", Moment(0, 0), "aa", {"a": 1, "b": 1, "c": 1})
        >>> sums.admit("first", Moment(0, 0), "aa", {"a": 1, "b": 1, "c": 1})
        >>> sums.admit("first", Moment(0, 0), "aa", {"a": 1, "c": 1})
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: round 0, exchange 0 was summed
        before, over the sites a, b, c, and the difference to a sum over a, c would be
        the upload of single sites. The site signs 0 second sums in a run
        (most_second_sums in its local/site_rules.toml). Continue the run with the
        sites of the first sum, and without others
    """

    def __init__(self, most_second_sums: int, answers: ExchangeCounter) -> None:
        self._most, self._answers = most_second_sums, answers
        directory = answers.directory
        self._file = None if directory is None else directory / SUMS
        self._read = 0
        self._sums: dict[str, list[dict[str, int]]] = {}
        self._second: dict[str, int] = {}

    def admit(
        self, run: str, moment: Moment, upload: str, shares: Mapping[str, int]
    ) -> None:
        """Add a sum that is about to be signed.

        Args:
            run: name of the run.
            moment: round and exchange.
            upload: digest of all that the site's upload follows from.
            shares: share of each site of the sum, by name.

        Raises:
            RefusedError: if the rule forbids the sum, or the file cannot be written.
        """
        try:
            with self._answers.lock():
                self._catch_up()
                earlier = self._sums.get(upload, [])
                if dict(shares) in earlier:
                    return
                if earlier and self._second.get(run, 0) >= self._most:
                    self._refuse(moment, earlier[0], shares)
                self._note(run, moment, upload, dict(shares))
        except OSError as error:
            reason = f"the site cannot record the sum: {error.strerror or error}"
            raise RefusedError(reason) from error

    def _refuse(
        self, moment: Moment, earlier: Mapping[str, int], shares: Mapping[str, int]
    ) -> None:
        first, second = (
            readable(", ".join(sorted(sites)))[:MOST_OF_NAMES]
            for sites in (earlier, shares)
        )
        if first == second:
            second = "them with other weights"
        raise RefusedError(
            f"round {moment[0]}, exchange {moment[1]} was summed before, over the "
            f"sites {first}, and the difference to a sum over {second} would be the "
            f"upload of single sites. The site signs {self._most} second sums in a run "
            f"(most_second_sums in its local/{RULES}). Continue the run with the "
            "sites of the first sum, and without others"
        )

    def _note(
        self, run: str, moment: Moment, upload: str, shares: dict[str, int]
    ) -> None:
        if self._file is not None:
            numbers = int(moment[0]), int(moment[1])
            line = json.dumps([run, *numbers, upload, shares]).encode()
            append(self._file, line)
            self._read += len(line) + 1
        self._add(run, upload, shares)

    def _add(self, run: str, upload: str, shares: dict[str, int]) -> None:
        sums = self._sums.setdefault(upload, [])
        self._second[run] = self._second.get(run, 0) + bool(sums)
        sums.append(shares)

    def _catch_up(self) -> None:
        """Read the sums that any process has signed since the last call."""
        if self._file is None:
            return
        lines, end = read_appended(self._file, self._read)
        if end < self._read:
            # The operator has removed or shortened the file.
            self._sums, self._second = {}, {}
            lines, end = read_appended(self._file, 0)
        for line in lines:
            try:
                run, _, _, upload, shares = json.loads(line)
                self._add(run, upload, dict(shares))
            except (ValueError, TypeError):
                raise RefusedError(
                    f"a line of {SUMS} in the site's kit is damaged: "
                    f"{readable(line.decode(errors='replace')[:50])!r}. Ask its "
                    "operator to restore the file"
                ) from None
        self._read = end
