"""How Orbax writes the arrays of a checkpoint in the background.

Its own way, by tensorstore, starts threads by the wall clock: once that has been put
back, it can happen that nothing is written until it is again where it was.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedbilevel.atomic_write import synchronise
from fedbilevel.engines.checkpoints.arrays import parts_of, write_parts


class ArraysHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Writes arrays, each process the parts that it holds.

    Example:
        >>> ArraysHandler.__name__
        'ArraysHandler'
    """

    async def async_save(
        self, directory: PathLike[str], args: "SaveArrays"
    ) -> list[Any]:
        """Take the arrays as they are; return what is done when they are written."""
        written = _write(Path(directory), dict(parts_of(args.arrays)))
        return [ocp.future.CommitFutureAwaitingContractedSignals(written)]

    def save(self, directory: PathLike[str], args: "SaveArrays") -> None:
        """Write at once: Orbax asks for this, and calls the other."""
        write_parts(Path(directory), dict(parts_of(args.arrays)))

    def restore(self, directory: PathLike[str], args: Any) -> None:
        """Orbax asks for this, and is not asked to read."""
        raise NotImplementedError("checkpoints are read by read_arrays")


# Orbax takes no handler that is not registered for both.
@ocp.args.register_with_handler(ArraysHandler, for_save=True, for_restore=True)
@dataclass
class SaveArrays(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Arrays to be written.

    Example:
        >>> SaveArrays([jax.numpy.zeros(2)]).arrays
        [Array([0., 0.], dtype=float32)]
    """

    arrays: Sequence[jax.Array | np.ndarray]


_Temporary: Any = ocp.path.atomicity.AtomicRenameTemporaryPath


class TemporaryDirectory(_Temporary):  # type: ignore[misc]
    """A temporary checkpoint directory: whole once it is created, and on the disk.

    Orbax writes its metadata file in another thread and reads it at once. If the reader
    comes first, Orbax logs "Metadata file does not exist" or "Failed to json parse
    Metadata file", though nothing is wrong.

    Orbax leaves it to the system when files reach the disk. Older checkpoints are
    deleted once this one has its name: if power is lost then, neither may be there.

    Example:
        >>> TemporaryDirectory.__name__
        'TemporaryDirectory'
    """

    async def create(self) -> Any:
        """Create the directory, and wait for its metadata file."""
        directory = await super().create()
        if self._checkpoint_metadata_store is not None:
            await asyncio.to_thread(self._checkpoint_metadata_store.wait_until_finished)
        return directory

    async def finalize(self) -> None:
        """Have all files put on the disk, give the directory its name, and that too."""
        await asyncio.to_thread(_synchronise_all, Path(self.get()))
        await super().finalize()
        directory = Path(self.get_final()).parent
        # The first checkpoint is in a directory whose own name is new.
        for names in (directory, directory.parent):
            await asyncio.to_thread(synchronise, names)


def _synchronise_all(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        synchronise(path)


async def _write(directory: Path, parts: Mapping[str, np.ndarray]) -> None:
    write_parts(directory, parts)
