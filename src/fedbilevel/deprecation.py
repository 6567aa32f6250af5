"""Deprecations: names, functions and arguments that a later release removes.

Each warns with the old name, the new name and the version of removal. CONTRIBUTING.md,
"How to deprecate", says when to use which.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(new: str, removal: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function warn when it is called.

    As PEP 702 asks, the function has its message as `__deprecated__`.

    Args:
        new: what to use instead.
        removal: the version that removes the function.

    Example:
        >>> @deprecated("fedbilevel.run", removal="0.3")
        ... def execute() -> int:
        ...     return 1
        >>> execute.__deprecated__
        'execute is deprecated and will be removed in 0.3; use fedbilevel.run.'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        message = _message(function.__qualname__, new, removal)

        @functools.wraps(function)
        def warning(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        warning.__deprecated__ = message  # type: ignore[attr-defined]
        return warning

    return decorate


def renamed_arguments(
    names: Mapping[str, str], removal: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function take arguments by their old names.

    Type checkers know the new names alone.

    Args:
        names: the new name of each old one.
        removal: the version that removes the old names.

    Raises:
        TypeError: by the function, if an argument is given under both names.

    Example:
        >>> @renamed_arguments({"place": "directory"}, removal="0.3")
        ... def read(directory: str) -> str:
        ...     return directory
        >>> with warnings.catch_warnings(record=True) as shown:
        ...     warnings.simplefilter("always")
        ...     read(place="runs")
        'runs'
        >>> str(shown[0].message)
        'read(place=...) is deprecated and will be removed in 0.3; use directory.'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        unknown = set(names.values()) - set(inspect.signature(function).parameters)
        if unknown:
            raise ValueError(
                f"{function.__qualname__} has no argument {', '.join(sorted(unknown))};"
                " correct the names given to renamed_arguments."
            )

        @functools.wraps(function)
        def renaming(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                name = f"{function.__qualname__}({old}=...)"
                if names[old] in kwargs:
                    raise TypeError(
                        f"{function.__qualname__} was given both {old} and "
                        f"{names[old]}, which are one argument; give {names[old]}."
                    )
                warnings.warn(
                    _message(name, names[old], removal),
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renaming

    return decorate


def renamed_names(
    module: str, load: Callable[[str], Any], names: Mapping[str, str], removal: str
) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that also knows old names.

    Args:
        module: the module's `__name__`.
        load: its `__getattr__` without the old names, such as lazy_loader's.
        names: the new name of each old one, both in the module.
        removal: the version that removes the old names.

    Example:
        >>> load = {"Limits": 1}.get
        >>> find = renamed_names("package", load, {"Bounds": "Limits"}, removal="0.3")
        >>> with warnings.catch_warnings(record=True):
        ...     warnings.simplefilter("always")
        ...     find("Bounds")
        1
    """

    def find(name: str) -> Any:
        if name not in names:
            return load(name)
        new = names[name]
        message = _message(f"{module}.{name}", f"{module}.{new}", removal)
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return load(new)

    return find


def _message(old: str, new: str, removal: str) -> str:
    return f"{old} is deprecated and will be removed in {removal}; use {new}."
