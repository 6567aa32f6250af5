"""Checks of the arguments of a run."""

from collections.abc import Callable, Mapping
from inspect import signature

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.optional import Conflict, conflict_of
from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import StoredData, seen_by
from fedbilevel.data.weights import (
    DevicesWithTerms,
    Weighting,
    level_weights,
    names_of,
)
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.protocol import Engine
from fedbilevel.error_text import first_line, place_in
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper

ROWS = 7
"""Size of the trial batch of losses: unlikely to fit another dimension by chance."""


def check_problem(
    problem: BilevelProblem, x: Upper, y: Lower, data: StoredData
) -> None:
    """Raise an error unless x and y are differentiable and both losses are scalars.

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
        ValueError: upper_loss returned an array of shape (7,) for a batch of 7
        examples. Return the mean over the batch, a scalar.
    """
    if not isinstance(problem, BilevelProblem):
        raise TypeError(
            f"problem is {problem!r}. Pass BilevelProblem(upper_loss, lower_loss)."
        )
    for name, variable in (("x", x), ("y", y)):
        leaves = jax.tree_util.tree_leaves_with_path(variable)
        if not leaves:
            raise ValueError(f"{name} has no arrays. Pass at least one array.")
        for path, leaf in leaves:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, which "
                    "is not differentiable. Convert it to floating point."
                )
            traced = isinstance(leaf, jax.core.Tracer)
            if not traced and not bool(jnp.isfinite(leaf).all()):
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} is not finite at the start of "
                    "the run. Pass finite initial values."
                )
    x = seen_by(data, x)
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
                describe_failure(name, loss, (x, y, batch), error)
            ) from error
        if value is None:
            raise ValueError(f"{name} returned None. Return the mean over the batch.")
        shape = getattr(value, "shape", None)
        if shape == () and not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{name} returned a scalar of dtype {value.dtype}, which is not "
                "differentiable. Return a real floating-point number."
            )
        if shape != ():
            raise ValueError(
                f"{name} returned an array of shape {shape} for a batch of {ROWS} "
                "examples. Return the mean over the batch, a scalar."
            )


def describe_failure(
    name: str,
    loss: Callable[..., object],
    arguments: tuple[Upper, Lower, Batch],
    error: Exception,
) -> str:
    """Return a message about a loss that failed: its inputs, the error, a remedy.

    Args:
        name: name of the loss.
        loss: the loss.
        arguments: x, y and the batch.
        error: error that the loss raised.

    Example:
        >>> rows = np.ones(2, np.float32)
        >>> describe_failure("upper_loss", len, (rows, rows, rows), KeyError("a"))
        "upper_loss(x, y, batch) failed on a batch float32[2] with x float32[2] and y
        float32[2]: KeyError: 'a'. Define the loss with three arguments: x, y, batch."
    """
    x, y, batch = arguments
    named = {"x": x, "y": y, "batch": batch}
    return (
        f"{name}(x, y, batch) failed on a batch {tree.forms(batch)} with x "
        f"{tree.forms(x)} and y {tree.forms(y)}{place_in(error, loss)}: "
        f"{_describe(error, loss, named)}"
    )


def _takes_three(loss: Callable[..., object]) -> bool:
    try:
        signature(loss).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # A function in C may have no signature.
        return True
    return True


def _describe(
    error: Exception, loss: Callable[..., object], arguments: Mapping[str, PyTree]
) -> str:
    """Return the first line of a loss's exception, and a remedy."""
    kind = type(error).__name__
    reason = first_line(error).rstrip(". ")
    traced = "Tracer" in kind or "Concretization" in kind
    if traced:
        remedy = "Write the loss with jax.numpy, without NumPy, float() and if"
    elif not _takes_three(loss):
        remedy = "Define the loss with three arguments: x, y, batch"
    elif isinstance(error, TypeError | ValueError):
        remedy = "Let the loss accept arrays of these shapes"
    elif isinstance(error, KeyError):
        keys = [
            f"{name} has {', '.join(map(repr, argument))}"
            for name, argument in arguments.items()
            if isinstance(argument, Mapping)
        ]
        remedy = f"Use a key that exists: {'; '.join(keys) or 'none is a dictionary'}"
    else:
        remedy = "Correct the loss"
    return f"{kind}{': ' * bool(reason)}{reason}. {remedy}."


def _is_whole(value: object) -> bool:
    # True is an int in Python, but a user who passes True does not mean 1.
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_variable(name: str, variable: PyTree) -> None:
    """Raise TypeError unless all leaves of a variable are numbers.

    Example:
        >>> check_variable("x", {"rate": "0.1"})
        Traceback (most recent call last):
        ...
        TypeError: x['rate'] is a str. Pass arrays of numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(variable):
        numbers = isinstance(leaf, bool | int | float | complex)
        kind = getattr(getattr(leaf, "dtype", None), "kind", "f" if numbers else "O")
        if kind in "SUOM":
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is a {type(leaf).__name__}. Pass "
                "arrays of numbers."
            )


def check_participation(participation: object) -> None:
    """Raise TypeError unless participation is a function.

    Example:
        >>> check_participation("all")
        Traceback (most recent call last):
        ...
        TypeError: participation is 'all'. Pass FullParticipation(), UniformSample(10),
        or a function of the seed, the round number and the number of devices.
    """
    if isinstance(participation, type) or not callable(participation):
        raise TypeError(
            f"participation is {participation!r}. Pass FullParticipation(), "
            "UniformSample(10), or a function of the seed, the round number and the "
            "number of devices."
        )


def check_rounds(rounds: int) -> None:
    """Raise ValueError unless rounds is a whole number from 1 to 2³¹ − 1.

    Example:
        >>> check_rounds(0)
        Traceback (most recent call last):
        ...
        ValueError: rounds is 0. Pass a whole number, at least 1.
    """
    if not _is_whole(rounds) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}. Pass a whole number, at least 1.")
    if rounds >= 2**31:
        raise ValueError(
            f"rounds is {rounds}. Pass at most {2**31 - 1}: round numbers are 32-bit "
            "integers."
        )


def require_comparable(phases: tuple[Phase, ...], devices: Devices) -> None:
    """Raise ValueError if updates are compared that differ by design.

    Devices with only one level, or with separate rows of x, send other updates than
    the rest: a robust mean would discard them.
    """
    if not isinstance(devices, DevicesWithTerms):
        return
    if any(phase.aggregation.mean is not None for phase in phases):
        raise ValueError(
            "A robust mean discards updates that differ from the others, but these "
            "devices differ by design: levels have their own weights, or x has parts "
            "by site. Remove the robust mean from the transforms."
        )


def require_fitting(
    algorithm: FederatedAlgorithm, devices: Devices, weights: Weighting
) -> None:
    """Raise ValueError if an algorithm cannot use a device with upper examples only.

    Example:
        >>> from fedbilevel import FedBiO, InMemoryDevices, LocalExamples
        >>> devices = InMemoryDevices([LocalExamples(np.ones(2), np.ones(2))])
        >>> require_fitting(FedBiO(0.1), devices, None)
    """
    conflict = conflict_of(algorithm, Conflict.UPPER_ONLY)
    if conflict is None:
        return
    levels = level_weights(devices, weights)
    for device in np.flatnonzero((levels.upper > 0) & (levels.lower == 0))[:1]:
        raise ValueError(
            f"Device {names_of(devices)[device]!r} has upper examples, but no lower "
            f"examples of a weight above 0. {conflict}"
        )


def check_every(every: int) -> None:
    """Raise ValueError unless every is a whole number above zero.

    Example:
        >>> check_every(0)
        Traceback (most recent call last):
        ...
        ValueError: every is 0. Pass a whole number, at least 1: every=5 yields every
        fifth round.
    """
    if not _is_whole(every) or every < 1:
        raise ValueError(
            f"every is {every!r}. Pass a whole number, at least 1: every=5 yields "
            "every fifth round."
        )


def check_run(seed: int, engine: Engine, limits: object) -> None:
    """Raise an error unless seed, engine and limits are valid.

    Example:
        >>> from fedbilevel import Simulation
        >>> check_run(seed=0, engine=Simulation(), limits=1e6)
        Traceback (most recent call last):
        ...
        TypeError: limits is 1000000.0. Pass Limits(norm=1000000.0), or omit limits to
        accept any finite upload.
    """
    check_seed(seed)
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise TypeError(
            f"engine is {engine!r}. Pass Simulation(), Sharded() or DebugSimulation()."
        )
    if not isinstance(limits, Limits):
        number = isinstance(limits, int | float) and not isinstance(limits, bool)
        norm = repr(limits) if number else "1e6"
        raise TypeError(
            f"limits is {limits!r}. Pass Limits(norm={norm}), or omit limits to "
            "accept any finite upload."
        )


def check_seed(seed: int) -> None:
    """Raise an error unless seed is a whole number of 32 bits.

    Example:
        >>> check_seed(2**32)
        Traceback (most recent call last):
        ...
        ValueError: seed is 4294967296. Pass a whole number from 0 to 4294967295: the
        random generator uses 32 bits, so another seed would repeat one of these.
    """
    if not _is_whole(seed):
        raise TypeError(f"seed is {seed!r}. Pass a whole number, at least 0.")
    if not 0 <= seed < 2**32:
        raise ValueError(
            f"seed is {seed}. Pass a whole number from 0 to {2**32 - 1}: the random "
            "generator uses 32 bits, so another seed would repeat one of these."
        )


def check_chunk_size(engine: str, chunk_size: int | None) -> None:
    """Raise ValueError unless chunk_size is None or a whole number above zero.

    Example:
        >>> check_chunk_size("Simulation", 0)
        Traceback (most recent call last):
        ...
        ValueError: chunk_size of Simulation is 0. Pass a whole number, at least 1.
    """
    if chunk_size is None:
        return
    if not isinstance(chunk_size, int | np.integer) or chunk_size < 1:
        raise ValueError(
            f"chunk_size of {engine} is {chunk_size!r}. Pass a whole number, at least "
            "1."
        )
