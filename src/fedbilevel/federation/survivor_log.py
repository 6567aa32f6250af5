"""The survivors of a server's secure sums, kept for the repetition of an exchange."""

import json
from collections.abc import Iterable
from pathlib import Path

from fedbilevel.atomic_write import append, read_appended
from fedbilevel.engines.protocol import Moment


class SurvivorLog:
    """The survivors of each secure sum of a run, which outlive its checkpoints.

    A server that resumes from a checkpoint repeats exchanges, whose sums sites sign
    over the same survivors only (`SumRecord`). The line of a sum is on disk before a
    site can sign it. If sites did not sign, the first survivors remain those of the
    task, since the server cannot know that none did.

    Args:
        file: file with a line for each sum; None to keep survivors in memory.

    Example:
        >>> log = SurvivorLog()
        >>> log.add(Moment(0, 0), "00ff", ["a", "c"])
        >>> log.of("00ff")
        ['a', 'c']
        >>> log.of("11aa")
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._survivors: dict[str, list[str]] = {}
        lines = [] if file is None else read_appended(file, 0)[0]
        for line in lines:
            _, _, task, names = json.loads(line)
            self._survivors.setdefault(task, names)

    def add(self, moment: Moment, task: str, names: Iterable[str]) -> None:
        """Keep the survivors of a sum, unless its task has some.

        Args:
            moment: round and exchange.
            task: digest of the task.
            names: names of the survivors.
        """
        if task in self._survivors:
            return
        self._survivors[task] = list(names)
        if self._file is not None:
            line = [int(moment[0]), int(moment[1]), task, self._survivors[task]]
            append(self._file, json.dumps(line).encode())

    def of(self, task: str) -> list[str] | None:
        """Return the survivors of a task; None for a new one."""
        return self._survivors.get(task)
