"""What a run has learnt, in a file that NumPy reads."""

import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import jax
import numpy as np

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.task import Task
from fedbilevel.regular_files import read_regular

HEADER = 10_000
"""Bytes that NumPy may write before the numbers of an array."""


UNREADABLE = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    BadZipFile,
    zlib.error,
)
"""What NumPy raises at files that are none of its own."""


class Solution(NamedTuple):
    """Both variables at the end of a run.

    Attributes:
        x: the upper variable, what was tuned.
        y: the lower variable, the model.

    Example:
        >>> Solution(1.0, 2.0).y
        2.0
    """

    x: Upper
    y: Lower


def write_solution(directory: Path, learnt: Solution) -> None:
    """Write `solution.npz`: an array for each leaf of x and y, named by its path.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_solution(directory, Solution({"rate": np.zeros(2)}, np.ones(3)))
        >>> sorted(np.load(directory / "solution.npz"))
        ["x['rate']", 'y']
    """
    with atomic_replace(directory / SOLUTION) as unfinished:
        np.savez(unfinished, **_named(learnt))


def read_solution(directory: Path, task: Task) -> Solution:
    """Read `solution.npz` into variables like those of the run's task.

    Raises:
        ValueError: if the run has not come to its end, is of another problem, or the
            file is damaged.

    Example:
        >>> import tempfile
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_solution(directory, Solution(task.x, task.y))
        >>> bool((read_solution(directory, task).x == task.x).all())
        True
    """
    file = directory / SOLUTION
    again = (
        f"remove it, and make it anew by: fedbilevel resume {quote(str(directory))}."
    )
    try:
        content = read_regular(file, again)
    except FileNotFoundError:
        raise ValueError(
            f"{directory} has no {SOLUTION}: the run has not come to its end; go on with "
            f"it by: fedbilevel resume {quote(str(directory))}."
        ) from None
    like = Solution(task.x, task.y)
    wanted = _named(like)
    try:
        arrays = _arrays(content, {name: one.nbytes for name, one in wanted.items()})
    except UNREADABLE:
        # Its words are NumPy's, which suggests to load pickled objects.
        raise ValueError(f"{file} is damaged; {again}") from None
    if sorted(wanted) != sorted(arrays):
        raise ValueError(
            f"{file} has {', '.join(arrays) or 'nothing'}, but the problem has "
            f"{', '.join(wanted)}: it has changed since; run it again."
        )
    leaves = [
        _as(arrays[name], leaf, f"{name} of {file}") for name, leaf in wanted.items()
    ]
    found: Solution = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return found


def _arrays(content: bytes, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the arrays of a file; those of other names unread.

    Raises:
        Exception: one of `UNREADABLE`.
    """
    with ZipFile(io.BytesIO(content)) as packed:
        for member in packed.infolist():
            # A few packed bytes can stand for more than there is memory.
            most = sizes.get(member.filename.removesuffix(".npy"))
            if most is not None and member.file_size > most + HEADER:
                raise ValueError("it unpacks to more than the problem has")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] if name in sizes else None for name in arrays}


def _as(array: Any, like: Any, what: str) -> Any:
    if array.shape != like.shape:
        raise ValueError(
            f"{what} has shape {array.shape}, but the problem has {like.shape}: it has "
            "changed since; run it again."
        )
    # NumPy's files forget the names of dtypes that are not its own.
    return array.view(like.dtype) if array.dtype.kind == "V" else array


def _named(learnt: Solution) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(learnt)
    }
