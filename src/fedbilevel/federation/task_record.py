"""The record of answered tasks, so that no task gets two different answers."""

from pathlib import Path

from fedbilevel.atomic_write import append, read_appended
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.epsilon_account import WITHOUT_NOISE, EpsilonAccount
from fedbilevel.federation.exchange_counter import ExchangeCounter
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.plurals import count_noun

ANSWERED = "answered.txt"
"""File of a run directory at a site: a line for each task, in order."""


class TaskRecord:
    """The tasks of a run that a site has answered, one for each exchange.

    A server resumed from a checkpoint repeats earlier exchanges. An identical task gets
    the identical answer. A different task is a rollback: later tasks are removed from
    the record, and `most_rollbacks` limits the number of rollbacks. Two processes may
    answer one run: each reads the other's entries before it answers.

    Args:
        rules: rules of the site.
        directory: run directory, in which the record outlives the process; None to keep
            it in memory.
        count: counter of the exchanges that the site has answered in all runs.
        account: account of the ε of these exchanges; by default a new one.

    Example:
        >>> rules = SiteRules(most_rollbacks=0)
        >>> tasks = TaskRecord(rules, directory=None, count=ExchangeCounter())
        >>> tasks.admit(Moment(0, 0), "aa")
        >>> tasks.admit(Moment(0, 0), "aa")  # identical
        >>> tasks.admit(Moment(0, 0), "bb")
        Traceback (most recent call last):
        ...
        fedbilevel.federation.transport.RefusedError: round 0, exchange 0 has
        another downlink or other settings than the task that the site has answered, or
        comes after later exchanges. The site allows 0 rollbacks in a run
        (most_rollbacks in its local/site_rules.toml); its operator can raise it
    """

    def __init__(
        self,
        rules: SiteRules,
        directory: Path | None,
        count: ExchangeCounter,
        account: EpsilonAccount | None = None,
    ) -> None:
        self._rules, self._count = rules, count
        self._account = account or EpsilonAccount(rules, count)
        self._file = None if directory is None else directory / ANSWERED
        self._name = "" if directory is None else directory.name
        # Plain tuples instead of Moment: the garbage collector skips them.
        self._digests: dict[tuple[int, int], str] = {}
        self._rollbacks = self._read = 0

    def admit(self, moment: Moment, digest: str, charge: str = WITHOUT_NOISE) -> None:
        """Add a task that is about to be answered.

        Args:
            moment: round and exchange of the task.
            digest: digest of the task, the settings and the data.
            charge: noised answers of the exchange, for the account of ε.

        Raises:
            RefusedError: if the rules forbid an answer, or the file cannot be written.
        """
        try:
            with self._count.lock() as answered:
                self._catch_up()
                if self._digests.get(_numbers(moment)) != digest:
                    self._require_allowed(moment, answered)
                    self._account.require(charge)
                    self._note(moment, digest, charge)
        except OSError as error:
            reason = f"the site cannot record the task: {error.strerror or error}"
            raise RefusedError(reason) from error

    def require_exchanges(self, exchanges: int) -> None:
        """Raise if `most_exchanges` forbids to answer the whole run.

        Args:
            exchanges: number of exchanges of the whole run.

        Raises:
            RefusedError: if it does.
        """
        most = self._rules.most_exchanges
        with self._count.lock() as answered:
            self._catch_up()
            remaining = exchanges - len(self._digests)
        if remaining > most - answered:
            raise RefusedError(
                f"the run has {count_noun(remaining, 'more exchange')}, but the site "
                f"answers {max(0, most - answered)} more (most_exchanges = {most} in "
                f"its local/{RULES}, for all runs together). Set fewer rounds, or ask "
                "its operator to raise most_exchanges"
            )

    @property
    def last(self) -> tuple[int, int] | None:
        """The round and the exchange of the last answered task; None before any."""
        with self._count.lock():
            self._catch_up()
        return next(reversed(self._digests), None)

    def _require_allowed(self, moment: Moment, answered: int) -> None:
        if answered >= self._rules.most_exchanges:
            raise RefusedError(
                "the site has answered all exchanges that its rules allow "
                f"(most_exchanges = {self._rules.most_exchanges} in its local/{RULES}, "
                "for all runs together). Ask its operator to raise most_exchanges"
            )
        if self._is_rollback(moment) and self._rollbacks >= self._rules.most_rollbacks:
            raise RefusedError(
                f"round {moment[0]}, exchange {moment[1]} has another downlink or "
                "other settings than the task that the site has answered, or comes "
                f"after later exchanges. The site allows {self._rules.most_rollbacks} "
                f"rollbacks in a run (most_rollbacks in its local/{RULES}); its "
                "operator can raise it"
            )

    def _is_rollback(self, moment: Moment) -> bool:
        return bool(self._digests) and _numbers(moment) <= next(reversed(self._digests))

    def _add(self, moment: Moment, digest: str) -> None:
        if self._is_rollback(moment):
            self._rollbacks += 1
            while self._is_rollback(moment):
                self._digests.popitem()
        self._digests[_numbers(moment)] = digest

    def _catch_up(self) -> None:
        """Read the entries that any process has added since the last task."""
        if self._file is None:
            return
        lines, end = read_appended(self._file, self._read)
        if end < self._read:
            # The operator has removed the file: answer the run from its start.
            self._digests, self._rollbacks = {}, 0
            lines, end = read_appended(self._file, 0)
        for line in lines:
            try:
                round_number, exchange, digest = line.decode().split()
                self._add(Moment(int(round_number), int(exchange)), digest)
            except ValueError:
                raise RefusedError(
                    f"a line of {ANSWERED} in the site's run directory is damaged: "
                    f"{readable(line.decode(errors='replace')[:50])!r}. Ask its "
                    "operator to restore the file, or to remove the run directory so "
                    "that the site answers the run from its start"
                ) from None
        self._read = end

    def _note(self, moment: Moment, digest: str, charge: str) -> None:
        # Count first: after a crash in between, the answer must still count.
        self._count.add(f"{self._name} {moment[0]} {moment[1]}", charge)
        if self._file is not None:
            line = f"{moment[0]} {moment[1]} {digest}".encode()
            append(self._file, line)
            self._read += len(line) + 1
        self._add(moment, digest)


def _numbers(moment: Moment) -> tuple[int, int]:
    return int(moment[0]), int(moment[1])
