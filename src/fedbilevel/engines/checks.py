"""Refusals of a run that cannot work, each naming cause and cure."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from fedbilevel.data.examples import StoredData
from fedbilevel.engines.protocol import Engine
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

ROWS = 7
"""Of the batch that losses are tried on: a size that is unlikely to fit by chance."""


def check_problem(
    problem: BilevelProblem, x: Upper, y: Lower, data: StoredData
) -> None:
    """Refuse variables that cannot be differentiated and losses that are no scalars.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem
        >>> from fedbilevel.data.examples import StoredExamples
        >>> loss = lambda x, y, batch: y - batch
        >>> rows = StoredExamples(jnp.ones(3), jnp.array(0), jnp.array(3))
        >>> x = y = jnp.array(0.0)
        >>> check_problem(BilevelProblem(loss, loss), x, y, StoredData(rows, rows))
        Traceback (most recent call last):
        ...
        ValueError: upper_loss returned an array of shape (7,) for a batch of 7; return
        the mean over the batch, a scalar.
    """
    for name, variable in (("x", x), ("y", y)):
        leaves = jax.tree_util.tree_leaves_with_path(variable)
        if not leaves:
            raise ValueError(f"{name} holds no array; give it at least one.")
        for path, leaf in leaves:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, which "
                    "cannot be differentiated; make it floating point."
                )
    for name, loss, examples in (
        ("upper_loss", problem.upper_loss, data.upper),
        ("lower_loss", problem.lower_loss, data.lower),
    ):
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((ROWS, *leaf.shape[1:]), leaf.dtype),
            examples.arrays,
        )
        try:
            value = jax.eval_shape(loss, x, y, batch)
        except Exception as error:
            raise ValueError(
                f"{name}(x, y, batch) failed on a batch {_shapes(batch)} with x "
                f"{_shapes(x)} and y {_shapes(y)}: {type(error).__name__}: {error}"
            ) from error
        shape = getattr(value, "shape", None)
        if shape != ():
            raise ValueError(
                f"{name} returned an array of shape {shape} for a batch of {ROWS}; "
                "return the mean over the batch, a scalar."
            )


def _shapes(variable: PyTree) -> str:
    def short(leaf: Array | jax.ShapeDtypeStruct) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}"

    return str(jax.tree.map(short, variable)).replace("'", "")


def check_rounds(rounds: int) -> None:
    """Refuse what is no number of rounds.

    Example:
        >>> check_rounds(0)
        Traceback (most recent call last):
        ...
        ValueError: a run needs a whole number of rounds, at least 1, but rounds is 0.
    """
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise ValueError(
            "a run needs a whole number of rounds, at least 1, but rounds is "
            f"{rounds!r}."
        )


def check_run(seed: int, engine: Engine, norm_limit: float | None) -> None:
    """Refuse seeds, engines and limits that no run can have.

    Example:
        >>> from fedbilevel import Simulation
        >>> check_run(seed=0, engine=Simulation(), norm_limit=0.0)
        Traceback (most recent call last):
        ...
        ValueError: norm_limit is 0.0; give a number above zero, or None to welcome any
        finite upload.
    """
    if not isinstance(seed, int | np.integer):
        raise TypeError(f"a run needs a whole number for seed, but it is {seed!r}.")
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise TypeError(
            f"engine is {engine!r}; give an engine: Simulation(), Sharded() or "
            "DebugSimulation()."
        )
    if norm_limit is not None and not (
        isinstance(norm_limit, int | float | np.number) and norm_limit > 0
    ):
        raise ValueError(
            f"norm_limit is {norm_limit!r}; give a number above zero, or None to "
            "welcome any finite upload."
        )


def check_chunk_size(engine: str, chunk_size: int | None) -> None:
    """Refuse a chunk size that is no number of devices.

    Example:
        >>> check_chunk_size("Simulation", 0)
        Traceback (most recent call last):
        ...
        ValueError: Simulation needs chunk_size to be a whole number, at least 1, but it
        is 0.
    """
    if chunk_size is None:
        return
    if not isinstance(chunk_size, int | np.integer) or chunk_size < 1:
        raise ValueError(
            f"{engine} needs chunk_size to be a whole number, at least 1, but it is "
            f"{chunk_size!r}."
        )


def check_weights(
    weights: ArrayLike | None, device_count: int
) -> Float[np.ndarray, "devices"]:
    """Return the weights as an array, equal ones by default.

    Example:
        >>> check_weights(None, 2)
        array([1., 1.])
        >>> check_weights([1.0, -1.0], 2)
        Traceback (most recent call last):
        ...
        ValueError: the weight of device 1 is -1.0; weights must be finite and at least
        zero.
    """
    if weights is None:
        return np.ones(device_count)
    array = np.asarray(weights, float)
    if array.shape != (device_count,):
        raise ValueError(
            f"weights has shape {array.shape}, but {device_count} devices are "
            "enrolled; give one weight a device."
        )
    for device in np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[:1]:
        raise ValueError(
            f"the weight of device {device} is {array[device]}; weights must be finite "
            "and at least zero."
        )
    return array
