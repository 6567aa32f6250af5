"""A tracker for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.extras import needs
from fedbilevel.tracking.protocol import RunStatus, numbers
from fedbilevel.tracking.records import Record


class TensorBoard:
    """A tracker that writes event files for `tensorboard --logdir`.

    After a resumption TensorBoard shows earlier records up to the first new record,
    and new records from there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings = ""
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Check that tensorboardX is installed; the first record opens the file."""
        with needs("TensorBoard's files", "tensorboardX", "'fedbilevel[tensorboard]'"):
            import tensorboardX  # noqa: F401
        lines = (f"    {key} = {value}" for key, value in settings.items())
        self._settings = "\n".join(lines)

    def record(self, record: Record) -> None:
        """Add the values of a record."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            # TensorBoard then ignores this and later rounds in earlier files. Files are
            # named by the second, so a quick resumption would overwrite its file.
            self._writer = SummaryWriter(
                str(self.directory),
                purge_step=record.rounds,
                filename_suffix=f".{record.rounds:09d}",
            )
            self._writer.add_text("settings", self._settings, record.rounds)
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.rounds)

    def end(self, outcome: RunStatus) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
