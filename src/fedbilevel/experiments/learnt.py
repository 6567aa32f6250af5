"""What a run has learnt, in a file that NumPy reads."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.experiments.folders import LEARNT
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.task import Task
from fedbilevel.replacing import replacing


class Learnt(NamedTuple):
    """Both variables at the end of a run.

    Attributes:
        x: the upper variable, what was tuned.
        y: the lower variable, the model.

    Example:
        >>> Learnt(1.0, 2.0).y
        2.0
    """

    x: Upper
    y: Lower


def write_learnt(folder: Path, learnt: Learnt) -> None:
    """Write `learnt.npz`: an array for each leaf of x and y, named by its path.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_learnt(folder, Learnt({"rate": np.zeros(2)}, np.ones(3)))
        >>> sorted(np.load(folder / "learnt.npz"))
        ["x['rate']", 'y']
    """
    with replacing(folder / LEARNT) as unfinished:
        np.savez(unfinished, **_named(learnt))


def read_learnt(folder: Path, task: Task) -> Learnt:
    """Read `learnt.npz` into variables like those of the run's task.

    Raises:
        ValueError: if the run has not come to its end, or is of another problem.

    Example:
        >>> import tempfile
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_learnt(folder, Learnt(task.x, task.y))
        >>> bool((read_learnt(folder, task).x == task.x).all())
        True
    """
    file = folder / LEARNT
    if not file.exists():
        raise ValueError(
            f"{folder} has no {LEARNT}: the run has not come to its end; go on with "
            f"it by: fedbilevel resume {folder}."
        )
    like = Learnt(task.x, task.y)
    wanted = _named(like)
    with np.load(file) as arrays:
        if sorted(wanted) != sorted(arrays):
            raise ValueError(
                f"{file} has {', '.join(arrays)}, but the problem has "
                f"{', '.join(wanted)}: it has changed since; run it again."
            )
        leaves = [
            _as(arrays[name], leaf, f"{name} of {file}")
            for name, leaf in wanted.items()
        ]
    found: Learnt = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return found


def _as(array: Any, like: Any, what: str) -> Any:
    if array.shape != like.shape:
        raise ValueError(
            f"{what} has shape {array.shape}, but the problem has {like.shape}: it has "
            "changed since; run it again."
        )
    # NumPy's files forget the names of dtypes that are not its own.
    return array.view(like.dtype) if array.dtype.kind == "V" else array


def _named(learnt: Learnt) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(learnt)
    }
