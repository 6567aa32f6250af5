"""TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.tracking.protocol import Outcome, numbers
from fedbilevel.tracking.records import Record


class TensorBoard:
    """Writes event files that `tensorboard --logdir` shows.

    Where a run goes on, TensorBoard shows its rounds once: those from before up to the
    first new record, and the new ones from there.

    Example:
        >>> TensorBoard(Path("runs/first")).directory.name
        'first'
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings = ""
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """See that files can be written; the first record opens one."""
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "TensorBoard's files are written by tensorboardX; "
                "run: pip install 'fedbilevel[tensorboard]'"
            ) from error
        lines = (f"    {key} = {value}" for key, value in settings.items())
        self._settings = "\n".join(lines)

    def record(self, record: Record) -> None:
        """Add the numbers of a round."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            # Tells TensorBoard to forget this round and later ones of earlier files.
            self._writer = SummaryWriter(str(self.directory), purge_step=record.rounds)
            self._writer.add_text("settings", self._settings, record.rounds)
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.rounds)

    def end(self, outcome: Outcome) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
