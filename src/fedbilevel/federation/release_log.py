"""The exchanges with noise of a server, counted for good."""

from pathlib import Path

from fedbilevel.atomic_write import append
from fedbilevel.engines.protocol import Moment


class ReleaseLog:
    """A count of the exchanges with noise of a run, which outlives its checkpoints.

    A server that resumes from a checkpoint repeats exchanges with other noise, and each
    repetition spends privacy. The line of an exchange is on disk before its noise is
    drawn.

    Args:
        file: file with a line for each exchange; None to count in memory.

    Example:
        >>> log = ReleaseLog(None)
        >>> log.add(Moment(0, 0))
        >>> log.count
        1
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        exists = file is not None and file.exists()
        self.count = file.read_bytes().count(b"\n") if file and exists else 0

    def add(self, moment: Moment) -> None:
        """Count an exchange."""
        if self._file is not None:
            append(self._file, f"{moment[0]} {moment[1]}".encode())
        self.count += 1
