"""Checks of types at run time, of the first calls of each function in each test.

jaxtyping wraps every function of the package when it is defined, binds its arguments at
each call and lets beartype compile a check. A process imports all functions and calls
some, and the functions inside a function are made again at each call of the outer one,
hundreds of times while an algorithm is traced. So a function is wrapped at its first
call, and only its first calls in a test are checked: which calls these are does not
depend on other tests.
"""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any

import jaxtyping

CHECKED_CALLS = 2
"""Calls of a function that are checked in a test; functions of one code are one."""
calls: Counter[CodeType] = Counter()
"""Calls of the running test that were checked."""
jaxtyped: Callable[..., Any] = jaxtyping.jaxtyped


def check_first_calls(*, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that checks the first calls of a function in each test.

    The hook of jaxtyping decorates functions and classes of the package with it.
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            return jaxtyped(function, typechecker=typechecker)
        code, checked = function.__code__, None

        @wraps(function)
        def sampled(*arguments: Any, **named: Any) -> Any:
            nonlocal checked
            if calls[code] >= CHECKED_CALLS:
                return function(*arguments, **named)
            calls[code] += 1
            if checked is None:
                checked = jaxtyped(function, typechecker=typechecker)
            return checked(*arguments, **named)

        return sampled

    return decorate


jaxtyping.jaxtyped = check_first_calls  # type: ignore[assignment]
