"""The tasks of a run that a site has answered, so that none is answered differently."""

import os
from pathlib import Path

from fedbilevel.atomic_write import append
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError

ANSWERED = "answered.txt"
"""The file of a run's directory at a site: a line for each task, in order."""


class TaskRecord:
    """The tasks of a run that a site has answered, one for each exchange.

    A server that was resumed from a checkpoint asks earlier exchanges again. Where it
    asks the same, it gets the same answer. Where it asks something else, it goes back:
    what was answered from there on is forgotten, and the rules limit how often. Two
    processes may answer one run: each reads what the other has noted before it answers.

    Args:
        rules: of the site.
        directory: of the run, where the list outlives the process; none to keep it in
            memory.
        count: of the exchanges that the site has answered in all runs.

    Example:
        >>> rules = SiteRules(most_rollbacks=0)
        >>> tasks = TaskRecord(rules, directory=None, count=ExchangeCounter())
        >>> tasks.admit(Moment(0, 0), "aa")
        >>> tasks.admit(Moment(0, 0), "aa")  # the same again
        >>> tasks.admit(Moment(0, 0), "bb")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: round 0, exchange 0 comes
        with another downlink or other settings than the site has answered, or after
        later exchanges; a server may go back 0 times in a run, as most_rollbacks in the
        site's local/site_rules.toml says
    """

    def __init__(
        self, rules: SiteRules, directory: Path | None, count: ExchangeCounter
    ) -> None:
        self._rules, self._count = rules, count
        self._file = None if directory is None else directory / ANSWERED
        self._name = "" if directory is None else directory.name
        # Not of moments: the garbage collector need not look at tuples of numbers.
        self._digests: dict[tuple[int, int], str] = {}
        self._rollbacks = self._read = 0

    def admit(self, moment: Moment, digest: str) -> None:
        """Note a task that is about to be answered.

        Args:
            moment: of the task.
            digest: of the task and of all settings and data that it meets.

        Raises:
            RefusedError: if the rules do not allow an answer, or the task cannot be
                noted.
        """
        try:
            with self._count.held() as answered:
                self._catch_up()
                if self._digests.get(_numbers(moment)) != digest:
                    self._require_allowed(moment, answered)
                    self._note(moment, digest)
        except OSError as error:
            reason = f"it cannot note what it answers: {error.strerror or error}"
            raise RefusedError(reason) from error

    def require_left(self, exchanges: int) -> None:
        """Refuse a run that the site could not answer to its end.

        Args:
            exchanges: of the whole run.

        Raises:
            RefusedError: says what to set where.
        """
        most = self._rules.most_exchanges
        with self._count.held() as answered:
            self._catch_up()
            to_come = exchanges - len(self._digests)
        if to_come > most - answered:
            raise RefusedError(
                f"the run has {to_come} exchanges to come, but the site answers "
                f"{max(0, most - answered)} more, as most_exchanges = {most} in its "
                f"local/{RULES} is for all runs together. Ask for fewer rounds, or let "
                "its operator raise it"
            )

    def _require_allowed(self, moment: Moment, answered: int) -> None:
        if answered >= self._rules.most_exchanges:
            raise RefusedError(
                f"the site answers {self._rules.most_exchanges} exchanges of all runs "
                f"together, as most_exchanges in its local/{RULES} says, and has "
                "answered them. Let its operator raise it"
            )
        if self._goes_back(moment) and self._rollbacks >= self._rules.most_rollbacks:
            raise RefusedError(
                f"round {moment[0]}, exchange {moment[1]} comes with another downlink "
                "or other settings than the site has answered, or after later "
                f"exchanges; a server may go back {self._rules.most_rollbacks} times "
                f"in a run, as most_rollbacks in the site's local/{RULES} says"
            )

    def _goes_back(self, moment: Moment) -> bool:
        return bool(self._digests) and _numbers(moment) <= next(reversed(self._digests))

    def _add(self, moment: Moment, digest: str) -> None:
        if self._goes_back(moment):
            self._rollbacks += 1
            while self._goes_back(moment):
                self._digests.popitem()
        self._digests[_numbers(moment)] = digest

    def _catch_up(self) -> None:
        """Read what was noted since the last task, by this process or by another."""
        if self._file is None:
            return
        if not self._file.exists() or self._file.stat().st_size < self._read:
            # Removed by the operator: the run is answered from its start.
            self._digests, self._rollbacks, self._read = {}, 0, 0
        if not self._file.exists():
            return
        for moment, digest in _lines(self._file, self._read):
            self._add(moment, digest)
        self._read = self._file.stat().st_size

    def _note(self, moment: Moment, digest: str) -> None:
        # Counted first: a crash in between must not make an answer uncounted.
        self._count.add(f"{self._name} {moment[0]} {moment[1]}")
        if self._file is not None:
            line = f"{moment[0]} {moment[1]} {digest}".encode()
            append(self._file, line)
            self._read += len(line) + 1
        self._add(moment, digest)


def _numbers(moment: Moment) -> tuple[int, int]:
    return int(moment[0]), int(moment[1])


def _lines(file: Path, read: int) -> list[tuple[Moment, str]]:
    """Return what a file holds beyond so many bytes.

    A last line that was not finished is cut off. To be called with the lock held, or
    another process might be about to finish it.
    """
    with file.open("rb") as opened:
        before = opened.read(read).count(b"\n")
        added = opened.read()
    whole = added[: added.rfind(b"\n") + 1]
    if whole != added:
        # Its task was not answered: a line is written first.
        os.truncate(file, read + len(whole))
    found = []
    text = whole.decode(errors="replace")
    for number, line in enumerate(text.splitlines(), start=before + 1):
        try:
            round_number, exchange, digest = line.split()
            found.append((Moment(int(round_number), int(exchange)), digest))
        except ValueError:
            raise RefusedError(
                f"line {number} of the list of tasks that the site has answered is "
                f"damaged; let its operator restore {file.name} of the run's directory, "
                "or remove that directory to answer the run from its start"
            ) from None
    return found
