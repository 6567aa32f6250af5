"""Refusals of a run that cannot work, each naming cause and cure."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree
from numpy.typing import ArrayLike

from fedbilevel.data.examples import StoredData
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.protocol import Engine
from fedbilevel.error_text import first_line
from fedbilevel.mathematics import tree
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
    if not isinstance(problem, BilevelProblem):
        raise TypeError(
            f"{problem!r} was given for a problem; give "
            "BilevelProblem(upper_loss, lower_loss)."
        )
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
            traced = isinstance(leaf, jax.core.Tracer)
            if not traced and not bool(jnp.isfinite(leaf).all()):
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} is not finite where the run "
                    "begins; begin at finite numbers."
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
                f"{name}(x, y, batch) failed on a batch {tree.forms(batch)} with x "
                f"{tree.forms(x)} and y {tree.forms(y)}: {_said(error)}"
            ) from error
        if value is None:
            raise ValueError(f"{name} returned nothing; return the mean of the batch.")
        shape = getattr(value, "shape", None)
        if shape == () and not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{name} returned a number of {value.dtype}, which cannot be "
                "differentiated; return a real number."
            )
        if shape != ():
            raise ValueError(
                f"{name} returned an array of shape {shape} for a batch of {ROWS}; "
                "return the mean over the batch, a scalar."
            )


def _said(error: Exception) -> str:
    """Return what a loss raised, in its first line, and what to do about it."""
    kind = type(error).__name__
    said = first_line(error).rstrip(". ")
    traced = "Tracer" in kind or "Concretization" in kind
    cure = (
        "write it with jax.numpy, without NumPy, float() and if"
        if traced
        else "let it take arrays of these shapes"
    )
    return f"{kind}{': ' * bool(said)}{said}; {cure}."


def _is_whole(value: object) -> bool:
    # Python takes True for 1; whoever gives it means something else.
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_variable(name: str, variable: PyTree) -> None:
    """Refuse what holds anything but numbers.

    Example:
        >>> check_variable("x", {"rate": "0.1"})
        Traceback (most recent call last):
        ...
        TypeError: x['rate'] is a str; give arrays of numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(variable):
        numbers = isinstance(leaf, bool | int | float | complex)
        kind = getattr(getattr(leaf, "dtype", None), "kind", "f" if numbers else "O")
        if kind in "SUOM":
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is a {type(leaf).__name__}; give "
                "arrays of numbers."
            )


def check_participation(participation: object) -> None:
    """Refuse what cannot choose devices.

    Example:
        >>> check_participation("all")
        Traceback (most recent call last):
        ...
        TypeError: participation is 'all'; give FullParticipation(), UniformSample(10), or a
        function of a seed, a round's number and a number of devices.
    """
    if isinstance(participation, type) or not callable(participation):
        raise TypeError(
            f"participation is {participation!r}; give FullParticipation(), UniformSample(10), "
            "or a function of a seed, a round's number and a number of devices."
        )


def check_rounds(rounds: int) -> None:
    """Refuse what is no number of rounds.

    Example:
        >>> check_rounds(0)
        Traceback (most recent call last):
        ...
        ValueError: a run needs a whole number of rounds, at least 1, but rounds is 0.
    """
    if not _is_whole(rounds) or rounds < 1:
        raise ValueError(
            "a run needs a whole number of rounds, at least 1, but rounds is "
            f"{rounds!r}."
        )
    if rounds >= 2**31:
        raise ValueError(
            f"a run has at most {2**31 - 1} rounds, since their numbers have 32 bits; "
            f"rounds is {rounds}."
        )


def check_every(every: int) -> None:
    """Refuse what is no distance between rounds.

    Example:
        >>> check_every(0)
        Traceback (most recent call last):
        ...
        ValueError: every is 0; give a whole number, at least 1: the rounds from one
        that is yielded to the next.
    """
    if not _is_whole(every) or every < 1:
        raise ValueError(
            f"every is {every!r}; give a whole number, at least 1: the rounds from one "
            "that is yielded to the next."
        )


def check_run(seed: int, engine: Engine, limits: object) -> None:
    """Refuse seeds, engines and limits that no run can have.

    Example:
        >>> from fedbilevel import Simulation
        >>> check_run(seed=0, engine=Simulation(), limits=1e6)
        Traceback (most recent call last):
        ...
        TypeError: limits is 1000000.0; give Limits(norm=1000000.0), or leave it out to
        let any finite upload count.
    """
    check_seed(seed)
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise TypeError(
            f"engine is {engine!r}; give an engine: Simulation(), Sharded() or "
            "DebugSimulation()."
        )
    if not isinstance(limits, Limits):
        number = isinstance(limits, int | float) and not isinstance(limits, bool)
        such = repr(limits) if number else "1e6"
        raise TypeError(
            f"limits is {limits!r}; give Limits(norm={such}), or leave it out to let "
            "any finite upload count."
        )


def check_seed(seed: int) -> None:
    """Refuse what is no seed.

    Example:
        >>> check_seed(2**32)
        Traceback (most recent call last):
        ...
        ValueError: a run needs a seed from 0 to 4294967295, but it is 4294967296:
        random draws begin from 32 bits, and such seeds would repeat those of others.
    """
    if not _is_whole(seed):
        raise TypeError(f"a run needs a whole number for seed, but it is {seed!r}.")
    if not 0 <= seed < 2**32:
        raise ValueError(
            f"a run needs a seed from 0 to {2**32 - 1}, but it is {seed}: random draws "
            "begin from 32 bits, and such seeds would repeat those of others."
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
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"weights are {weights!r}; give a number for each of {device_count} "
            "devices."
        ) from None
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
    with np.errstate(over="ignore"):
        total = array.sum()
    if not np.isfinite(total):
        raise ValueError(
            f"the sum of all weights is beyond the range of numbers; divide them by "
            f"the largest, {array.max():g}: only their ratios matter."
        )
    return array
