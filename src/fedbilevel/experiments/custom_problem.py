"""A problem of one's own: what its file makes, and where it goes wrong."""

import runpy
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.problems.task import Model, Task
from fedbilevel.regular_files import UnreadableError, read_regular

Made = TypeVar("Made", Task, Model, LocalExamples)


def custom_task(file: Path) -> Task:
    """Return what the function `task` of a file returns.

    Raises:
        ValueError: if there is none, or it fails; says where.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "empty.py"
        >>> _ = file.write_text("x = 3")
        >>> custom_task(file)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: problem.file: ...empty.py has no function task(); fedbilevel new
        shows one.
    """
    made = _made(file, Task, "task")
    if not isinstance(made.devices, InMemoryDevices):
        raise ValueError(
            f"problem.file: the devices of {file} are a {type(made.devices).__name__}; "
            "give fedbilevel.InMemoryDevices."
        )
    return made


def custom_model(file: Path) -> Model:
    """Return what the function `model` of a file returns: a task without its examples.

    Raises:
        ValueError: if there is none, or it fails; says where.

    Example:
        >>> custom_model(Path("nowhere.py"))
        Traceback (most recent call last):
        ...
        ValueError: problem.file: there is no nowhere.py.
    """
    return _made(file, Model, "model")


def custom_examples(file: Path, site: str) -> LocalExamples:
    """Return what the function `examples` of a file returns for a site.

    Raises:
        ValueError: if there is none, or it fails; says where.

    Example:
        >>> custom_examples(Path("nowhere.py"), "site-1")
        Traceback (most recent call last):
        ...
        ValueError: problem.file: there is no nowhere.py.
    """
    return _made(file, LocalExamples, "examples", site)


def _made(file: Path, kind: type[Made], name: str, *arguments: str) -> Made:
    """Return what a function of a file returns, if it is of a kind."""
    try:
        source = read_regular(file, "name a file of Python.")
    except FileNotFoundError:
        raise ValueError(f"problem.file: there is no {file}.") from None
    except UnreadableError as error:
        raise ValueError(f"problem.file: {error}") from None
    try:
        make, made = _result(str(file), source, name, arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"problem.file: {_place(error, file)}") from error
    call = f"{name}({'site' if arguments else ''})"
    if not callable(make):
        raise ValueError(
            f"problem.file: {file} has no function {call}; fedbilevel new shows one."
        )
    if not isinstance(made, kind):
        raise ValueError(
            f"problem.file: {call} of {file} returned a {type(made).__name__}; return "
            f"a fedbilevel{'.problems' if kind is not LocalExamples else ''}."
            f"{kind.__name__}."
        )
    return made


@lru_cache(maxsize=1)
def _result(
    file: str, source: bytes, name: str, arguments: tuple[str, ...]
) -> tuple[Any, Any]:
    """Return a function of a file, and what it returns; None if there is none.

    Runs of a comparison, which differ in their seed alone, get the same losses, whose
    programs are then compiled once, and the same examples, even if the file draws them
    from a generator of its own.
    """
    # What it imports may lie beside it.
    sys.path.insert(0, str(Path(file).parent))
    try:
        make = runpy.run_path(file).get(name)
        return make, make(*arguments) if callable(make) else None
    finally:
        sys.path.remove(str(Path(file).parent))


def _place(error: BaseException, file: Path) -> str:
    """Return what went wrong in a file, and in which line of it."""
    if isinstance(error, SyntaxError):
        return f"{file}, line {error.lineno}: {error.msg}."
    lines = [
        one.lineno
        for one in traceback.extract_tb(error.__traceback__)
        if one.filename == str(file)
    ]
    where = f", line {lines[-1]}" if lines else ""
    if isinstance(error, SystemExit):
        return f"{file}{where} ends the program; let it return, or raise an error."
    message = _message(error).rstrip(".")
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{file}{where}: {what}."


def _message(error: BaseException) -> str:
    """Return what an error of somebody's file says, even if it cannot say it."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    try:
        return str(error)
    except Exception:
        return "it has no words, since its own __str__ fails"
