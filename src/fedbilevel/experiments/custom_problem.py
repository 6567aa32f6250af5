"""Custom problems: call the functions of a problem file, and locate its errors."""

import runpy
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import jax

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.problems.task import Model, Task
from fedbilevel.regular_files import UnreadableError, read_regular

Result = TypeVar("Result", Task, Model, LocalExamples)


class MissingFunctionError(ValueError):
    """A problem file without a function that is needed."""


def custom_task(file: Path) -> Task:
    """Return the task that the function `task` of a problem file returns.

    Raises:
        MissingFunctionError: if the function is missing.
        ValueError: if it fails, with the line of the error.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "empty.py"
        >>> _ = file.write_text("x = 3")
        >>> custom_task(file)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        fedbilevel.experiments.custom_problem.MissingFunctionError: problem.file:
        ...empty.py has no function task(); add it, as in the example that fedbilevel
        new writes.
    """
    task = _call(file, Task, "task")
    if not isinstance(task.devices, InMemoryDevices):
        raise ValueError(
            f"problem.file: task() of {file} returned devices of the type "
            f"{type(task.devices).__name__}; return fedbilevel.InMemoryDevices."
        )
    return _with_arrays(task)


def custom_model(file: Path) -> Model:
    """Return the model (a task without examples) that `model` of a file returns.

    Raises:
        ValueError: if the function is missing or fails, with the line of the error.

    Example:
        >>> custom_model(Path("nowhere.py"))
        Traceback (most recent call last):
        ...
        ValueError: problem.file: nowhere.py does not exist; correct the path.
    """
    model = _with_arrays(_call(file, Model, "model"))
    return model._replace(form=jax.tree.map(on_host, model.form))


def custom_examples(file: Path, site: str) -> LocalExamples:
    """Return the examples of a site that the function `examples` of a file returns.

    Raises:
        ValueError: if the function is missing or fails, with the line of the error.
    """
    return _call(file, LocalExamples, "examples", site)


def _with_arrays(stated: Result) -> Result:
    """Return a task or model whose x and y are arrays, also if they were tensors."""
    start: Any = stated
    result: Result = start._replace(
        x=jax.tree.map(on_host, start.x), y=jax.tree.map(on_host, start.y)
    )
    return result


def _call(file: Path, cls: type[Result], name: str, *arguments: str) -> Result:
    """Return the result of a function of a file, of the given type."""
    try:
        source = read_regular(file, "give the path of a Python file.")
    except FileNotFoundError:
        raise ValueError(
            f"problem.file: {file} does not exist; correct the path."
        ) from None
    except UnreadableError as error:
        raise ValueError(f"problem.file: {error}") from None
    try:
        function, result = _result(str(file), source, name, arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"problem.file: {_describe(error, file)}") from error
    call = f"{name}({'site' if arguments else ''})"
    if not callable(function):
        raise MissingFunctionError(
            f"problem.file: {file} has no function {call}; add it, as in the example "
            "that fedbilevel new writes."
        )
    if not isinstance(result, cls):
        raise ValueError(
            f"problem.file: {call} of {file} returned a {type(result).__name__}; "
            f"return a fedbilevel{'.problems' if cls is not LocalExamples else ''}."
            f"{cls.__name__}."
        )
    return result


@lru_cache(maxsize=1)
def _result(
    file: str, source: bytes, name: str, arguments: tuple[str, ...]
) -> tuple[Any, Any]:
    """Return a function of a file and its result; None for a missing function.

    The cache gives all runs of a comparison the same losses, so that they are compiled
    once, and the same examples, even if the file draws them from its own generator.
    """
    # The file may import modules of its directory.
    sys.path.insert(0, str(Path(file).parent))
    try:
        function = runpy.run_path(file).get(name)
        return function, function(*arguments) if callable(function) else None
    finally:
        sys.path.remove(str(Path(file).parent))


def _describe(error: BaseException, file: Path) -> str:
    """Return file, line and message of an error in a problem file."""
    if isinstance(error, SyntaxError):
        # Null bytes in a file are a SyntaxError without a line.
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{file}{line}: SyntaxError: {error.msg}; correct the file."
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    line = f", line {lines[-1]}" if lines else ""
    if isinstance(error, SystemExit):
        return f"{file}{line} exits the program; return or raise an error instead."
    message, name = _message(error).rstrip("."), type(error).__name__
    text = f"{name}: {message}" if message else name
    cure = "Correct the file"
    if isinstance(error, ModuleNotFoundError):
        cure = "Install the module, or correct its name"
    return f"{file}{line}: {text}. {cure}; for the traceback, set FEDBILEVEL_DEBUG=1."


def _message(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` fails."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    try:
        return str(error)
    except Exception:
        return "no message, because its __str__ fails"
