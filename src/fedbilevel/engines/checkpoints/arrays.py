"""The arrays of a checkpoint, in NumPy's own format: one file of each process."""

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
    """Yield copies of what this process is to write, each with a name.

    The name is made of the array's number, the part's first row and its type.

    Args:
        arrays: this process's own, or shared by several along their first axis.

    Raises:
        ValueError: if they are shared along another.

    Example:
        >>> dict(parts_of([jnp.arange(3)]))
        {'0.0.int32': array([0, 1, 2], dtype=int32)}
    """
    for number, array in enumerate(arrays):
        for row, part in _held(array):
            yield f"{number}.{row}.{part.dtype.name}", _in_a_type_of_numpy(part)


def _held(array: jax.Array | np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        if jax.process_index() == 0:
            yield 0, np.array(array)
        return
    for shard in array.addressable_shards:
        rows, *others = shard.index or [WHOLE]
        if any(one != WHOLE for one in others):
            raise ValueError(
                "processes share an array along another than its first axis"
            )
        if shard.replica_id == 0:
            yield rows.start or 0, np.array(shard.data)


def _in_a_type_of_numpy(part: np.ndarray) -> np.ndarray:
    """Return the same bytes: NumPy's files have no name for bfloat16 and its like."""
    return part if part.dtype.isbuiltin == 1 else part.view(f"u{part.itemsize}")


def write_parts(directory: Path, parts: Mapping[str, np.ndarray]) -> None:
    """Write this process's parts.

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
    """Return the arrays, put together from the parts of all processes.

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
    found: dict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for path in directory.glob("*.npz"):
        with np.load(path) as parts:
            for name, part in parts.items():
                number, row, dtype = name.split(".")
                found[int(number)][int(row)] = part.view(jnp.dtype(dtype))
    if sorted(found) != list(range(len(found))):
        raise ValueError("an array is missing")
    return [_joined(parts) for _, parts in sorted(found.items())]


def _joined(parts: Mapping[int, np.ndarray]) -> np.ndarray:
    rows = sorted(parts)
    pieces = [parts[row] for row in rows]
    if rows == [0]:
        return pieces[0]
    ends = np.cumsum([len(piece) for piece in pieces])
    if rows != [0, *ends[:-1]]:
        raise ValueError("rows of an array are missing")
    return np.concatenate(pieces)
