"""The arrays of a checkpoint, in NumPy's own format: one file of each process."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np


def parts_of(arrays: Sequence[jax.Array]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what this process is to write, by an array's number and its first row.

    Args:
        arrays: whole ones, or ones that processes share along their first axis.

    Example:
        >>> import jax.numpy as jnp
        >>> dict(parts_of([jnp.arange(3)]))
        {'0.0': array([0, 1, 2], dtype=int32)}
    """
    for number, array in enumerate(arrays):
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                row = shard.index[0].start if shard.index else None
                yield f"{number}.{row or 0}", np.asarray(shard.data)


def write_parts(folder: Path, parts: Mapping[str, np.ndarray]) -> None:
    """Write this process's parts, as far as the disk.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_parts(folder, {"0.0": np.zeros(2)})
        >>> read_arrays(folder)
        [array([0., 0.])]
    """
    with (folder / f"{jax.process_index()}.npz").open("wb") as file:
        np.savez(file, **parts)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def read_arrays(folder: Path) -> list[np.ndarray]:
    """Return the arrays, put together from the parts of all processes.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_parts(folder, {"0.2": np.ones(1), "0.0": np.zeros(2)})
        >>> read_arrays(folder)
        [array([0., 0., 1.])]
    """
    found: dict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for path in folder.glob("*.npz"):
        with np.load(path) as parts:
            for name, part in parts.items():
                number, row = map(int, name.split("."))
                found[number][row] = part
    return [_joined(parts) for _, parts in sorted(found.items())]


def _joined(parts: Mapping[int, np.ndarray]) -> np.ndarray:
    inorder = [part for _, part in sorted(parts.items())]
    return inorder[0] if len(inorder) == 1 else np.concatenate(inorder)
