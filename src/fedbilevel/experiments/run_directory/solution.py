"""The solution of a run, in a file that NumPy reads."""

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
"""An upper bound of the bytes that NumPy writes before the numbers of an array."""

CHANGED = "The problem has changed since the run; run the experiment again."
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
"""Errors that NumPy raises for files that are not valid `.npz` files."""


class Solution(NamedTuple):
    """Both variables at the end of a run.

    Attributes:
        x: upper variable, such as tuned hyperparameters.
        y: lower variable, such as the weights of a model.
    """

    x: Upper
    y: Lower


def write_solution(directory: Path, solution: Solution) -> None:
    """Write `solution.npz`: an array for each leaf of x and y, named by its path.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_solution(directory, Solution({"rate": np.zeros(2)}, np.ones(3)))
        >>> sorted(np.load(directory / "solution.npz"))
        ["x['rate']", 'y']
    """
    with atomic_replace(directory / SOLUTION) as unfinished:
        np.savez(unfinished, **_named(solution))


def read_solution(directory: Path, task: Task) -> Solution:
    """Return the solution in `solution.npz`, with the structure of the run's task.

    Raises:
        ValueError: if the run is not finished, or of another problem, or the file is
            damaged.

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
    command = f"fedbilevel resume {quote(str(directory))}"
    cure = f"remove it, and write it again with: {command}."
    try:
        content = read_regular(file, cure)
    except FileNotFoundError:
        raise ValueError(
            f"{directory} has no {SOLUTION}: the run is not finished; resume it with: "
            f"{command}."
        ) from None
    start = Solution(task.x, task.y)
    expected = _named(start)
    try:
        arrays = _arrays(
            content, {name: leaf.nbytes for name, leaf in expected.items()}
        )
    except UNREADABLE:
        # NumPy's message suggests to load pickled objects, which is not safe.
        raise ValueError(f"{file} is damaged; {cure}") from None
    if sorted(expected) != sorted(arrays):
        raise ValueError(
            f"{file} has the arrays {', '.join(arrays) or '(none)'}, but the variables "
            f"of the problem are {', '.join(expected)}. {CHANGED}"
        )
    leaves = [
        _as(arrays[name], leaf, f"{name} of {file}") for name, leaf in expected.items()
    ]
    solution: Solution = jax.tree.unflatten(jax.tree.structure(start), leaves)
    return solution


def _arrays(content: bytes, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the arrays of a file by name; None for other names than those of `sizes`.

    Raises:
        Exception: one of `UNREADABLE`.
    """
    with ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            # A small compressed file can unpack to more bytes than there is memory.
            size = sizes.get(member.filename.removesuffix(".npy"))
            if size is not None and member.file_size > size + HEADER:
                raise ValueError("The file unpacks to more bytes than the problem has.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] if name in sizes else None for name in arrays}


def _as(array: Any, expected: Any, name: str) -> Any:
    if array.shape != expected.shape:
        raise ValueError(
            f"{name} has shape {array.shape}, but the problem has {expected.shape}. "
            f"{CHANGED}"
        )
    # NumPy's files do not keep the names of other dtypes than NumPy's.
    return array.view(expected.dtype) if array.dtype.kind == "V" else array


def _named(solution: Solution) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(solution)
    }
