"""Checks of types at run time, created once for each nested function.

A function inside a function is created at every call of the outer one, hundreds of
times while an algorithm is traced. beartype writes and compiles a check each time: a
sixth of the CPU time of tests of algorithms. A check depends on the signature alone, so
functions of the same name and signature share it.
"""

from collections.abc import Callable, Hashable
from typing import Any

from beartype import beartype

checks: dict[Hashable, Callable[..., Any]] = {}
"""Checks by name and signature of the nested function."""


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stub with the signature of a function, checked by beartype.

    Args:
        function: stub by jaxtyping, which calls it to check arguments and results. It
            has the name, the module, the parameters and the annotations of a function
            of the package, and neither its code nor its variables.
    """
    # jaxtyping's types of arrays differ from each other at every evaluation, but not in
    # their representation. Local classes of the same name do.
    annotations = repr(function.__annotations__)
    if (
        "<locals>" not in function.__qualname__
        or "<locals>" in annotations
        # beartype checks default values when it decorates.
        or function.__defaults__
        or function.__kwdefaults__
    ):
        return beartype(function)
    name = function.__module__, function.__qualname__
    signature = *name, function.__code__, annotations
    if signature not in checks:
        checks[signature] = beartype(function)
    return checks[signature]
