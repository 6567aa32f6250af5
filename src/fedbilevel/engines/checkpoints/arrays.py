"""The arrays of a checkpoint as .npz files, one for each process."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

WHOLE = slice(None)


def parts_of(
    arrays: Sequence[jax.Array | np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the parts of arrays that this process writes: name and copy.

    A name has the number of the array, the first row of the part and its dtype.

    Args:
        arrays: arrays of this process, or sharded over processes along the first axis.

    Raises:
        ValueError: if an array is sharded along another axis.

    Example:
        >>> dict(parts_of([jnp.arange(3)]))
        {'0.0.int32': array([0, 1, 2], dtype=int32)}
    """
    for number, array in enumerate(arrays):
        for row, part in _local_parts(array):
            yield f"{number}.{row}.{part.dtype.name}", _as_numpy_dtype(part)


def _local_parts(array: jax.Array | np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        if jax.process_index() == 0:
            yield 0, np.array(array)
        return
    for shard in array.addressable_shards:
        rows, *others = shard.index or [WHOLE]
        if any(axis != WHOLE for axis in others):
            raise ValueError(
                f"An array of shape {array.shape} is sharded along an axis other than "
                "the first. Shard it along its first axis."
            )
        if shard.replica_id == 0:
            yield rows.start or 0, np.array(shard.data)


def _as_numpy_dtype(part: np.ndarray) -> np.ndarray:
    """Return the same bytes in a NumPy dtype: .npy files do not support bfloat16."""
    return part if part.dtype.isbuiltin == 1 else part.view(f"u{part.itemsize}")


def write_parts(directory: Path, parts: Mapping[str, np.ndarray]) -> None:
    """Write the parts of this process to a file.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_parts(directory, {"0.0.float64": np.zeros(2)})
        >>> read_arrays(directory)
        [array([0., 0.])]
    """
    with (directory / f"{jax.process_index()}.npz").open("wb") as file:
        np.savez(file, **parts)  # type: ignore[arg-type]


def read_arrays(directory: Path) -> list[np.ndarray]:
    """Return the arrays, joined from the parts of all processes.

    Raises:
        ValueError: if a part is missing.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> parts = {"0.2.float64": np.ones(1), "0.0.float64": np.zeros(2)}
        >>> write_parts(directory, parts)
        >>> read_arrays(directory)
        [array([0., 0., 1.])]
    """
    arrays: dict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for path in directory.glob("*.npz"):
        with np.load(path) as parts:
            for name, part in parts.items():
                number, row, dtype = name.split(".")
                arrays[int(number)][int(row)] = part.view(jnp.dtype(dtype))
    if sorted(arrays) != list(range(len(arrays))):
        raise ValueError("an array is missing")
    return [_join(parts) for _, parts in sorted(arrays.items())]


def _join(parts: Mapping[int, np.ndarray]) -> np.ndarray:
    rows = sorted(parts)
    pieces = [parts[row] for row in rows]
    if rows == [0]:
        return pieces[0]
    ends = np.cumsum([len(piece) for piece in pieces])
    if rows != [0, *ends[:-1]]:
        raise ValueError("rows of an array are missing")
    return np.concatenate(pieces)
