"""TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.tracking.protocol import numbers
from fedbilevel.tracking.records import Record


class TensorBoard:
    """Writes event files that `tensorboard --logdir` shows.

    Example:
        >>> TensorBoard(Path("runs/first")).folder.name
        'first'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Open the event file."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard's files are written by tensorboardX; "
                "run: pip install 'fedbilevel[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(self.folder))
        words = "\n".join(f"    {key} = {value}" for key, value in settings.items())
        self._writer.add_text("settings", words)

    def record(self, record: Record) -> None:
        """Add the numbers of a round."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.round)

    def end(self) -> None:
        """Close the event file."""
        self._writer.close()
