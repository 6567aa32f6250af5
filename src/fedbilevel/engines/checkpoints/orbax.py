"""Handlers with which Orbax writes the arrays of a checkpoint in the background.

The default handler uses tensorstore, which starts threads by the wall clock: after the
clock is set back, it may write nothing until the clock reaches the earlier time again.
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
    """An Orbax handler that writes arrays; each process writes its own parts."""

    async def async_save(
        self, directory: PathLike[str], args: "SaveArrays"
    ) -> list[Any]:
        """Copy the arrays; return futures that end when they are written."""
        writing = _write(Path(directory), dict(parts_of(args.arrays)))
        return [ocp.future.CommitFutureAwaitingContractedSignals(writing)]

    def save(self, directory: PathLike[str], args: "SaveArrays") -> None:
        """Write at once. The interface requires it; Orbax calls `async_save`."""
        write_parts(Path(directory), dict(parts_of(args.arrays)))

    def restore(self, directory: PathLike[str], args: Any) -> None:
        """Raise NotImplementedError. The interface requires this method."""
        raise NotImplementedError("Read checkpoints with read_arrays.")


# Orbax accepts a handler only if it is registered for both.
@ocp.args.register_with_handler(ArraysHandler, for_save=True, for_restore=True)
@dataclass
class SaveArrays(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The arrays that `ArraysHandler` writes."""

    arrays: Sequence[jax.Array | np.ndarray]


_Temporary: Any = ocp.path.atomicity.AtomicRenameTemporaryPath


class TemporaryDirectory(_Temporary):  # type: ignore[misc]
    """A temporary checkpoint directory whose files are synchronised to disk.

    Orbax writes its metadata file in another thread and reads it at once. If the read
    comes first, Orbax logs "Metadata file does not exist" or "Failed to json parse
    Metadata file", although nothing is wrong. `create` waits for the file.

    Orbax does not call fsync. It deletes older checkpoints after renaming this one: on
    a power loss at that time, neither might be on disk. `finalize` calls fsync.
    """

    async def create(self) -> Any:
        """Create the directory, and wait for its metadata file."""
        directory = await super().create()
        if self._checkpoint_metadata_store is not None:
            await asyncio.to_thread(self._checkpoint_metadata_store.wait_until_finished)
        return directory

    async def finalize(self) -> None:
        """Synchronise all files, rename the directory, and synchronise its parents."""
        await asyncio.to_thread(_synchronise_all, Path(self.get()))
        await super().finalize()
        directory = Path(self.get_final()).parent
        # With the first checkpoint, the directory itself is new in its parent.
        for path in (directory, directory.parent):
            await asyncio.to_thread(synchronise, path)


def _synchronise_all(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        synchronise(path)


async def _write(directory: Path, parts: Mapping[str, np.ndarray]) -> None:
    write_parts(directory, parts)
