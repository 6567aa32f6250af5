"""An optax optimiser whose numbers are leaves, so that they can be swept."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.optax_schedule import OptaxSchedule, schedule_of
from fedbilevel.mathematics.settings import register
from fedbilevel.nearest import nearest
from fedbilevel.plugins import (
    import_object,
    load_plugins,
    warn_excluded,
    warn_name_taken,
)

GROUP = "fedbilevel.server_optimisers"
"""The entry points of plug-ins: functions that return what those of optax do."""


@register
@dataclass(frozen=True)
class OptaxOptimiser:
    """An optimiser of optax by its name and arguments; make it with `optax_optimiser`.

    Unlike what optax itself returns, two of the same name and arguments are equal, so
    that the second compiles nothing anew and a run can be resumed with it. Numbers are
    leaves: a grid of learning rates runs in one `sweep`.

    Attributes:
        name: of a function of optax, or of one that a plug-in brings.
        numbers: arguments that are fractions.
        choices: all other arguments.

    Example:
        >>> optax_optimiser("adam", learning_rate=0.01).numbers
        {'learning_rate': 0.01}
    """

    name: str = field(metadata={"static": True})
    numbers: dict[str, tree.Scalar]
    choices: tuple[tuple[str, Any], ...] = field(metadata={"static": True})

    def init(self, parameters: PyTree) -> PyTree:
        """Return the first state."""
        return self._made().init(parameters)

    def step(
        self, gradient: PyTree, state: PyTree, parameters: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the parameters after a step, and the next state."""
        return _step(self._made(), gradient, state, parameters)

    @property
    def table(self) -> dict[str, Any]:
        """Name and arguments as a file has them."""
        held = {**self.numbers, **dict(self.choices)}
        plain = {
            key: {"schedule": one.name, **one.table}
            if isinstance(one, OptaxSchedule)
            else one
            for key, one in sorted(held.items())
        }
        return {"name": self.name, **plain}

    def _made(self) -> Any:
        return _factory(self.name)(**self.numbers, **dict(self.choices))


@register
@dataclass(frozen=True)
class GivenOptimiser:
    """A transformation of optax that was made elsewhere, and cannot be looked into.

    Attributes:
        transformation: the pair of functions that optax returns.

    Example:
        >>> import optax
        >>> optimiser = GivenOptimiser(optax.sgd(0.5))
        >>> float(optimiser.step(2.0, optimiser.init(1.0), 1.0)[0])
        0.0
    """

    transformation: Any = field(metadata={"static": True})

    def init(self, parameters: PyTree) -> PyTree:
        """Return the first state."""
        return self.transformation.init(parameters)

    def step(
        self, gradient: PyTree, state: PyTree, parameters: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the parameters after a step, and the next state."""
        return _step(self.transformation, gradient, state, parameters)


def optax_optimiser(name: str, /, **arguments: Any) -> OptaxOptimiser:
    """Return an optimiser of optax that is equal to another of the same arguments.

    Args:
        name: of a function of optax that returns an optimiser; of one that a plug-in
            brings, by an entry point of the group `fedbilevel.server_optimisers`; or
            its place, such as `package.module:function`.
        arguments: of that function: numbers, true or false, words. A learning rate may
            be a schedule, by `optax_schedule` or as a table with a `schedule` in it.

    Raises:
        ValueError: if there is no such optimiser, or not with such arguments.

    Example:
        >>> optax_optimiser("adam", learning_rat=0.01)
        Traceback (most recent call last):
        ...
        ValueError: adam of optax has no argument learning_rat; did you mean
        learning_rate?
    """
    parameters = _parameters(name, arguments)
    given = {
        key: _converted(one, key, parameters[key].default)
        for key, one in sorted(arguments.items())
    }
    numbers = {key: one for key, one in given.items() if _is_rate(one)}
    choices = tuple((key, one) for key, one in given.items() if key not in numbers)
    made = OptaxOptimiser(name, numbers, choices)
    # Not on a scalar: sm3 takes vectors and matrices only.
    tried = {"vector": jnp.zeros(2), "matrix": jnp.zeros((2, 2))}
    try:
        made.step(tried, made.init(tried), tried)
    except Exception as error:
        # Factories check little: what is wrong may show as any error.
        raise ValueError(f"{_called(name)} refuses its arguments: {error}") from error
    return made


def optimiser_of(table: Mapping[str, Any]) -> OptaxOptimiser:
    """Return the optimiser that a table of a file stands for.

    Example:
        >>> optimiser_of({"name": "sgd", "learning_rate": 1.0}).name
        'sgd'
    """
    given = dict(table)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"the name of an optax optimiser is needed, not {name!r}.")
    return optax_optimiser(name, **given)


def as_tree(optimiser: Any) -> Any:
    """Return an optimiser as a pytree; a transformation of optax becomes one.

    Raises:
        TypeError: if it is none.

    Example:
        >>> as_tree(0.1)
        Traceback (most recent call last):
        ...
        TypeError: a float was given for the server's optimiser; give one of optax, such
        as optax.adam(0.01).
    """
    # Within a transformation of JAX a tree may hold anything in place of its leaves.
    if not callable(getattr(optimiser, "init", None)):
        if optimiser is None or isinstance(optimiser, float | int | str | type):
            raise TypeError(
                f"a {type(optimiser).__name__} was given for the server's optimiser; "
                "give one of optax, such as optax.adam(0.01)."
            )
        return optimiser
    return optimiser if hasattr(optimiser, "step") else GivenOptimiser(optimiser)


@cache
def factories() -> dict[str, Callable[..., Any]]:
    """Return the functions of optax and of plug-ins that make an optimiser, by name.

    Example:
        >>> "adam" in factories(), "chain" in factories()
        (True, False)
    """
    import optax  # a tenth of a second, which few programs need

    found: dict[str, Callable[..., Any]] = {
        name: one
        for name, one in vars(optax).items()
        if isinstance(one, types.FunctionType)
        and "learning_rate" in inspect.signature(one).parameters
        and "GradientTransformation" in str(inspect.signature(one).return_annotation)
    }
    for point, factory in load_plugins(GROUP):
        if not callable(factory):
            warn_excluded(point, "it is no function.")
        elif point.name in found:
            warn_name_taken(point, "server optimiser")
        else:
            found[point.name] = factory
    return found


def _factory(name: str) -> Callable[..., Any]:
    """Return the function of a name, or at a place.

    Raises:
        ValueError: if there is none.
    """
    known = factories()
    if name in known:
        return known[name]
    if ":" not in name:
        raise ValueError(f"optax has no optimiser {name!r}; {nearest(name, known)}")
    factory = import_object(name)
    if not callable(factory):
        raise ValueError(f"{name} is no function that would make an optimiser.")
    made: Callable[..., Any] = factory
    return made


def _step(
    transformation: Any, gradient: PyTree, state: PyTree, parameters: PyTree
) -> tuple[PyTree, PyTree]:
    # Optax mixes its counts and rates of any precision with what it is given.
    with jax.numpy_dtype_promotion("standard"):
        updates, following = transformation.update(gradient, state, parameters)
    following = jax.tree.map(
        lambda old, new: jnp.asarray(new, jnp.result_type(old)), state, following
    )
    moved = jax.tree.map(
        lambda a, b: a + jnp.asarray(b, jnp.result_type(a)), parameters, updates
    )
    return moved, following


def _parameters(
    name: str, arguments: Mapping[str, Any]
) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(_factory(name)).parameters
    for key in arguments:
        if key not in parameters:
            raise ValueError(
                f"{_called(name)} has no argument {key}; {nearest(key, parameters)}"
            )
    for key, one in parameters.items():
        if one.default is inspect.Parameter.empty and key not in arguments:
            raise ValueError(f"{_called(name)} needs the argument {key}.")
    return parameters


def _called(name: str) -> str:
    module = getattr(_factory(name), "__module__", None) or ""
    return f"{name} of optax" if module.partition(".")[0] == "optax" else name


def _converted(value: Any, key: str, default: Any) -> Any:
    if isinstance(value, Mapping) and "schedule" in value:
        return schedule_of(value)
    # A file may say 1 where 1.0 is meant.
    meant = key == "learning_rate" or isinstance(default, float)
    return float(value) if meant and type(value) is int else value


def _is_rate(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "dtype")
