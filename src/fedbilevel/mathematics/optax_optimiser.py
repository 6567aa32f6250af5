"""An optax optimiser with numeric arguments as pytree leaves, for `sweep`."""

import inspect
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.error_text import first_line
from fedbilevel.mathematics import adam, arrays, tree
from fedbilevel.mathematics.optax_schedule import OptaxSchedule, schedule_of
from fedbilevel.mathematics.settings import SettingError, register
from fedbilevel.nearest import nearest
from fedbilevel.plugins import import_object, with_plugins

GROUP = "fedbilevel.server_optimisers"
"""Entry-point group of plug-ins: functions that return an optax transformation."""


ADAM = {"learning_rate", "b1", "b2", "eps"}
"""Arguments of Adam for tensors."""


@register
@dataclass(frozen=True)
class OptaxOptimiser:
    """An optax optimiser by name and arguments; created with `optax_optimiser`.

    Unlike transformations of optax, two optimisers with the same name and arguments are
    equal, so the second needs no compilation and a run can be resumed with it. Numbers
    are leaves: a grid of learning rates runs in one `sweep`.

    Attributes:
        name: name of a function of optax or of a plug-in.
        numbers: floating-point arguments.
        choices: all other arguments.
    """

    name: str = field(metadata={"static": True})
    numbers: dict[str, tree.Scalar]
    choices: tuple[tuple[str, Any], ...] = field(metadata={"static": True})

    def init(self, parameters: PyTree) -> PyTree:
        """Return the initial state."""
        if arrays.has_tensors(parameters):
            self._require_adam()
            return adam.first_state(parameters)
        return self._transformation().init(parameters)

    def step(
        self, gradient: PyTree, state: PyTree, parameters: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the parameters after a step, and the next state."""
        if arrays.has_tensors(parameters):
            return adam.adam_step(gradient, state, parameters, **self.numbers)
        return _step(self._transformation(), gradient, state, parameters)

    @property
    def table(self) -> dict[str, Any]:
        """Name and arguments as a table of an experiment file."""
        arguments = {**self.numbers, **dict(self.choices)}
        plain = {
            key: {"schedule": value.name, **value.table}
            if isinstance(value, OptaxSchedule)
            else value
            for key, value in sorted(arguments.items())
        }
        return {"name": self.name, **plain}

    def _require_adam(self) -> None:
        if self.name != "adam" or self.choices or set(self.numbers) - ADAM:
            raise ValueError(
                f"The optimiser {self.name} with these arguments is for arrays of JAX, "
                "but x is a tensor of PyTorch. Use optax_optimiser('adam', "
                "learning_rate=...), with b1, b2 and eps at most."
            )

    def _transformation(self) -> Any:
        return _factory(self.name)(**self.numbers, **dict(self.choices))


@register
@dataclass(frozen=True)
class TransformationOptimiser:
    """An optimiser made from any optax transformation, with unknown arguments.

    Attributes:
        transformation: pair of functions that optax returns.

    Example:
        >>> import optax
        >>> optimiser = TransformationOptimiser(optax.sgd(0.5))
        >>> float(optimiser.step(2.0, optimiser.init(1.0), 1.0)[0])
        0.0
    """

    transformation: Any = field(metadata={"static": True})

    def init(self, parameters: PyTree) -> PyTree:
        """Return the initial state."""
        if arrays.has_tensors(parameters):
            raise TypeError(
                "A transformation of optax is for arrays of JAX, but x is a tensor of "
                "PyTorch. Use optax_optimiser('adam', learning_rate=...)."
            )
        return self.transformation.init(parameters)

    def step(
        self, gradient: PyTree, state: PyTree, parameters: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the parameters after a step, and the next state."""
        return _step(self.transformation, gradient, state, parameters)


def optax_optimiser(name: str, /, **arguments: Any) -> OptaxOptimiser:
    """Return an optax optimiser that is equal to others with the same arguments.

    Args:
        name: name of an optax function that returns an optimiser, of a plug-in's entry
            point in the group `fedbilevel.server_optimisers`, or an import path such as
            `package.module:function`.
        arguments: arguments of that function: numbers, booleans, strings. A learning
            rate may be a schedule: the result of `optax_schedule`, or a table with the
            key `schedule`.

    Raises:
        SettingError: if the optimiser or an argument is unknown, or an argument has the
            wrong type.
        ValueError: if the optimiser rejects the arguments.

    Example:
        >>> optax_optimiser("adam", learning_rat=0.01)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: adam of optax has no argument
        learning_rat; did you mean learning_rate?
    """
    parameters = _parameters(name, arguments)
    values = {
        key: _convert(name, value, key, parameters[key].default)
        for key, value in sorted(arguments.items())
    }
    numbers = {key: value for key, value in values.items() if _is_rate(value)}
    choices = tuple((key, v) for key, v in values.items() if key not in numbers)
    optimiser = OptaxOptimiser(name, numbers, choices)
    # The trial has no scalar, because sm3 takes only vectors and matrices.
    trial = {"vector": jnp.zeros(2), "matrix": jnp.zeros((2, 2))}
    try:
        optimiser.step(trial, optimiser.init(trial), trial)
    except Exception as error:
        # Factories check little: a wrong argument may raise any error.
        listed = ", ".join(f"{key} = {value!r}" for key, value in arguments.items())
        raise ValueError(
            f"{_full_name(name)} rejects its arguments {listed}: "
            f"{first_line(error).rstrip('.')}. Correct an argument, or choose another "
            "optimiser."
        ) from error
    return optimiser


def optimiser_of(table: Mapping[str, Any]) -> OptaxOptimiser:
    """Return the optimiser that a table of an experiment file specifies.

    Example:
        >>> optimiser_of({"name": "sgd", "learning_rate": 1.0}).name
        'sgd'
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        wrong = "the key is missing" if name is None else f"it is {name!r}"
        cure = f'{wrong}; give the name of an optax optimiser, such as "adam".'
        raise SettingError("name", cure)
    return optax_optimiser(name, **arguments)


def as_tree(optimiser: Any) -> Any:
    """Return an optimiser as a pytree; an optax transformation is wrapped.

    Raises:
        TypeError: if it is not an optimiser.

    Example:
        >>> as_tree(0.1)
        Traceback (most recent call last):
        ...
        TypeError: The server's optimiser is 0.1, expected an optimiser of optax. Pass,
        for example, optax.adam(0.01).
    """
    # Within a JAX transformation, a tree may have any object in place of its leaves.
    if not callable(getattr(optimiser, "init", None)):
        if optimiser is None or isinstance(optimiser, float | int | str | type):
            raise TypeError(
                f"The server's optimiser is {optimiser!r}, expected an optimiser of "
                "optax. Pass, for example, optax.adam(0.01)."
            )
        return optimiser
    if hasattr(optimiser, "step"):
        return optimiser
    return TransformationOptimiser(optimiser)


@cache
def factories() -> dict[str, Callable[..., Any]]:
    """Return the functions of optax and of plug-ins that return optimisers, by name.

    Example:
        >>> "adam" in factories(), "chain" in factories()
        (True, False)
    """
    import optax  # imported here: it takes 0.1 s, and few programs need it

    functions: dict[str, Callable[..., Any]] = {
        name: function
        for name, function in vars(optax).items()
        if isinstance(function, types.FunctionType)
        and not name.startswith("_")
        and "learning_rate" in (signature := inspect.signature(function)).parameters
        and "GradientTransformation" in str(signature.return_annotation)
    }
    return with_plugins(
        functions,
        GROUP,
        "server optimiser",
        lambda factory: None if callable(factory) else "it is not a function.",
    )


def _factory(name: str) -> Callable[..., Any]:
    """Return the function with a name or an import path.

    Raises:
        ValueError: if it does not exist.
    """
    known = factories()
    if name in known:
        return known[name]
    if ":" not in name:
        text = f"optax has no optimiser {name!r}; {nearest(name, known)}"
        raise SettingError("name", text, text)
    factory = import_object(name)
    if not callable(factory):
        raise ValueError(
            f"{name} is a {type(factory).__name__}, expected a function that returns "
            "an optax optimiser."
        )
    function: Callable[..., Any] = factory
    return function


def _step(
    transformation: Any, gradient: PyTree, state: PyTree, parameters: PyTree
) -> tuple[PyTree, PyTree]:
    # Optax mixes counts and rates of any precision with the parameters.
    with jax.numpy_dtype_promotion("standard"):
        updates, next_state = transformation.update(gradient, state, parameters)
    next_state = jax.tree.map(
        lambda old, new: jnp.asarray(new, jnp.result_type(old)), state, next_state
    )
    next_parameters = jax.tree.map(
        lambda a, b: a + jnp.asarray(b, jnp.result_type(a)), parameters, updates
    )
    return next_parameters, next_state


def _parameters(
    name: str, arguments: Mapping[str, Any]
) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(_factory(name)).parameters
    for key in arguments:
        if key not in parameters:
            cure = nearest(key, parameters)
            text = f"{_full_name(name)} has no argument {key}; {cure}"
            raise SettingError(key, text, text)
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in arguments:
            raise ValueError(f"{_full_name(name)} needs the argument {key}.")
    return parameters


def _full_name(name: str) -> str:
    module = getattr(_factory(name), "__module__", None) or ""
    return f"{name} of optax" if module.partition(".")[0] == "optax" else name


def _convert(name: str, value: Any, key: str, default: Any) -> Any:
    if isinstance(value, Mapping) and "schedule" in value:
        return schedule_of(value)
    is_float = key == "learning_rate" or isinstance(default, float)
    # Optax multiplies by true as by 1, and fails at text only within a step.
    if is_float and isinstance(value, bool | str | list | tuple | Mapping):
        raise _type_error(name, key, value, "a number")
    if isinstance(default, bool) and not isinstance(value, bool):
        raise _type_error(name, key, value, "true or false")
    # In a file, a user may write 1 for 1.0.
    return float(value) if is_float and type(value) is int else value


def _type_error(name: str, key: str, value: Any, wanted: str) -> SettingError:
    text = json.dumps(value) if isinstance(value, bool | str) else repr(value)
    message = f"{_full_name(name)}: {key} is {value!r}, expected {wanted}."
    return SettingError(key, f"give {wanted}, not {text}.", message)


def _is_rate(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "dtype")
