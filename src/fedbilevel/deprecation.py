"""Deprecations: names, functions, classes and arguments that a later release removes.

Each warns with the old name, the new name and the version of removal. CONTRIBUTING.md,
"How to deprecate", says when to use which.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])
Keywords = dict[str, Any]

# From `prepare` of `_before`, through its wrapper, to the caller of the wrapper.
_CALLER = 3


def deprecated(new: str, removal: str) -> Callable[[C], C]:
    """Return a decorator that makes a function or a class warn when it is called.

    As PEP 702 asks, the function has its message as `__deprecated__`. A class stays the
    same class. A coroutine function warns when its coroutine is awaited.

    Args:
        new: what to use instead.
        removal: the version that removes the function or the class.

    Raises:
        TypeError: by the decorator, above `@classmethod`, `@staticmethod` or
            `@property`.

    Example:
        >>> @deprecated("fedbilevel.run", removal="0.3")
        ... def execute() -> int:
        ...     return 1
        >>> execute.__deprecated__
        'execute is deprecated and will be removed in 0.3; use fedbilevel.run.'
    """

    def decorate(target: C) -> C:
        _check_order(target, "deprecated")
        message = _message(target.__qualname__, new, removal)

        def prepare(keywords: Keywords) -> Keywords:
            warnings.warn(message, DeprecationWarning, stacklevel=_CALLER)
            return keywords

        result = _before(target, prepare)
        result.__deprecated__ = message  # type: ignore[attr-defined]
        return result

    return decorate


def renamed_arguments(names: Mapping[str, str], removal: str) -> Callable[[C], C]:
    """Return a decorator that lets a function or a class take arguments by old names.

    A class, such as a dataclass with a renamed field, stays the same class. Type
    checkers and `dataclasses.replace` know the new names alone.

    Args:
        names: the new name of each old name.
        removal: the version that removes the old names.

    Raises:
        TypeError: by the function, if an argument is given under two names; by the
            decorator, above `@classmethod`, `@staticmethod` or `@property`.
        ValueError: by the decorator, if the function has no argument of a new name.

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

    def decorate(target: C) -> C:
        _check_order(target, "renamed_arguments")
        called = target.__qualname__
        unknown = set(names.values()) - set(inspect.signature(target).parameters)
        if unknown:
            raise ValueError(
                f"{called} has no argument {', '.join(sorted(unknown))};"
                " correct the names given to renamed_arguments."
            )

        def prepare(keywords: Keywords) -> Keywords:
            spellings: dict[str, str] = {}
            for name in keywords:
                new = names.get(name, name)
                if new in spellings:
                    raise TypeError(
                        f"{called} was given both {spellings[new]} and {name},"
                        f" which are one argument; give {new} alone."
                    )
                spellings[new] = name
            for new, name in spellings.items():
                if new != name:
                    warnings.warn(
                        _message(f"{called}({name}=...)", new, removal),
                        DeprecationWarning,
                        stacklevel=_CALLER,
                    )
            return {new: keywords[name] for new, name in spellings.items()}

        return _before(target, prepare)

    return decorate


def renamed_names(
    module: str, load: Callable[[str], Any], names: Mapping[str, str], removal: str
) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that also knows old names.

    Args:
        module: the module's `__name__`.
        load: the module's `__getattr__` without the old names.
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


def _before(target: C, prepare: Callable[[Keywords], Keywords]) -> C:
    """Return the target with `prepare` applied to each call's keyword arguments."""
    if not isinstance(target, type):
        return _wrapped(target, prepare)
    # A function in place of the class would break isinstance, patterns and subclasses.
    changed: Any = target
    if changed.__init__ is object.__init__ and changed.__new__ is not object.__new__:
        # A NamedTuple: object.__init__ refuses arguments once __init__ is replaced.
        changed.__new__ = staticmethod(_wrapped(changed.__new__, prepare))
    else:
        changed.__init__ = _wrapped(changed.__init__, prepare)
    return target


def _wrapped(function: C, prepare: Callable[[Keywords], Keywords]) -> C:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **keywords: Any) -> Any:
            return await function(*args, **prepare(keywords))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            return function(*args, **prepare(keywords))

    return wrapper  # type: ignore[return-value]


def _check_order(target: object, decorator: str) -> None:
    if isinstance(target, classmethod | staticmethod | property):
        kind = type(target).__name__
        raise TypeError(
            f"@{decorator} is above @{kind}, which is no function;"
            f" put @{decorator} below @{kind}."
        )


def _message(old: str, new: str, removal: str) -> str:
    return f"{old} is deprecated and will be removed in {removal}; use {new}."
