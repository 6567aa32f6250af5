"""Read experiment files; report mistakes with file, line, key, value and cure."""

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)

from fedbilevel.experiments.files.convert import ListOfTablesError, converter
from fedbilevel.experiments.files.other_names import OTHER_NAMES
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.toml_lines import line_of
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import Auto, CustomProblem, Experiment
from fedbilevel.experiments.schema.registry import AUTO, UnknownNameError, list_types
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.nearest import nearest, nearest_name
from fedbilevel.regular_files import UnreadableError, read_regular
from fedbilevel.terminal import one_line

LARGEST = 1_000_000
"""Maximum size of an experiment file in bytes; 1 MB of TOML is parsed in 1 to 2 s."""


class ExperimentError(ValueError):
    """The mistakes in an experiment file, one line for each."""


def read_experiment(file: Path) -> Experiment:
    r"""Read an experiment file.

    Raises:
        ExperimentError: if the file cannot be read or has a mistake.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "first.toml"
        >>> lines = ["rounds = 5", "[algorithm]", 'name = "FedBiO"', "learning_rat = 1"]
        >>> _ = file.write_text("\n".join(lines))
        >>> try:
        ...     read_experiment(file)
        ... except ExperimentError as error:
        ...     print(str(error).replace(str(file.parent), "…"))
        …/first.toml, line 4: unknown key algorithm.learning_rat; did you mean
        learning_rate?
    """
    try:
        text = _read(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ExperimentError(
            f"{file} is not UTF-8 text (byte {error.start} is invalid); save the file "
            "in UTF-8."
        ) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(
            f"{file} is not valid TOML: {error}; correct the syntax there."
        ) from error
    except ValueError:
        # Python refuses to convert longer numbers.
        raise ExperimentError(
            f"{file} has a number of more than 4300 digits; shorten the number."
        ) from None
    except RecursionError:
        raise ExperimentError(
            f"{file} is nested too deeply; remove levels: an experiment file has at "
            "most three."
        ) from None
    try:
        experiment: Experiment = converter().structure(document, Experiment)
    except BaseValidationError as error:
        mistakes = _without_echoes(list(mistakes_of(error)))
        lines = [(line_of(text, mistake.path) or 0, mistake) for mistake in mistakes]
        raise ExperimentError(
            "\n".join(
                f"{file}, line {line}: {mistake.message}"
                if line
                else f"{file}: {mistake.message}"
                for line, mistake in sorted(lines, key=lambda pair: pair[0])
            )
        ) from None
    return located(experiment, file.parent)


def check_problem_file(file: Path, original: Experiment, changed: Experiment) -> None:
    """Raise `ExperimentError` if problem.file of an experiment file is missing.

    Args:
        file: the experiment file.
        original: the experiment of the file.
        changed: the same with overrides; a problem of the command line has no line.
    """
    problem = changed.problem
    if not isinstance(problem, CustomProblem) or problem != original.problem:
        return
    if not problem.file.is_file():
        wrong = "is not a file" if problem.file.exists() else "does not exist"
        line = line_of(file.read_text(encoding="utf-8"), ("problem", "file"))
        path = one_line(str(problem.file))
        raise ExperimentError(
            f"{file}, line {line}: problem.file: {path} {wrong}; correct the path."
        )


def _read(file: Path) -> bytes:
    """Return the content of an experiment file, or raise `ExperimentError`."""
    cure = (
        "give the path of an experiment file, or write one with: fedbilevel new NAME."
    )
    if (file / EXPERIMENT).is_file():
        raise ExperimentError(
            f"{file} is a run directory, not an experiment file; give an experiment "
            f"file, or resume the run with: fedbilevel resume {quote(str(file))}."
        )
    try:
        content = read_regular(file, cure, LARGEST)
    except FileNotFoundError as error:
        raise ExperimentError(
            f"{file} cannot be read: {error.strerror}; {cure}"
        ) from error
    except UnreadableError as error:
        raise ExperimentError(str(error)) from error
    if file.suffix == ".py":
        beside = file.with_suffix(".toml")
        cure = f"give the experiment file {beside}." if beside.is_file() else cure
        raise ExperimentError(
            f"{file} is a Python file, not an experiment file (TOML); {cure}"
        )
    return content


class Mistake(NamedTuple):
    """A mistake in an experiment.

    Attributes:
        path: the key and the tables around it, outermost first.
        message: key, cause and cure.
        near_key: the known key that an unknown key resembles.
        missing: whether the key is missing.
    """

    path: tuple[str, ...]
    message: str
    near_key: str | None = None
    missing: bool = False


def _without_echoes(mistakes: list[Mistake]) -> list[Mistake]:
    """Omit keys that are missing only because they are misspelt."""
    near = {(*item.path[:-1], item.near_key) for item in mistakes if item.near_key}
    return [item for item in mistakes if not (item.missing and item.path in near)]


def mistakes_of(error: BaseException, path: tuple[str, ...] = ()) -> Iterator[Mistake]:
    """Yield the mistakes behind an error of the converter.

    Args:
        error: error of `converter().structure`.
        path: key of the value that could not be converted.
    """
    if isinstance(error, ClassValidationError | IterableValidationError):
        with_notes, others = error.group_exceptions()
        for inner, note in with_notes:
            # Elements of a list have no keys, so the list's key is reported.
            name = (note.name,) if isinstance(note, AttributeValidationNote) else ()
            yield from mistakes_of(inner, (*path, *name))
        for inner in others:
            yield from mistakes_of(inner, path)
        return
    if isinstance(error, ForbiddenExtraKeysError):
        yield from _unknown_keys(error, path)
    elif isinstance(error, UnknownNameError):
        key = (*path, error.key) if error.key else path
        cure = nearest(error.name, error.known)
        yield Mistake(key, f"{_dotted(key)}: unknown name {error.name!r}; {cure}")
    elif isinstance(error, SettingError):
        key = (*path, *error.field.split("."))
        yield Mistake(key, f"{_dotted(key)}: {error.cure}")
    elif isinstance(error, ListOfTablesError):
        key_text = _dotted(path)
        yield Mistake(
            path,
            f"{key_text} is a list of tables, [[{key_text}]]; write a single table, "
            f"[{key_text}].",
        )
    elif isinstance(error, KeyError):
        message = f"{_dotted(path)} is missing; {_addition(path)}"
        yield Mistake(path, message, missing=True)
    else:
        yield Mistake(path, f"{_dotted(path)}: {error}")


def _unknown_keys(
    error: ForbiddenExtraKeysError, path: tuple[str, ...]
) -> Iterator[Mistake]:
    known = [item.name for item in fields(error.cl)]
    for extra in sorted(error.extra_fields):
        key = (*path, extra)
        text = f"unknown key {_dotted(key)}; "
        if right := OTHER_NAMES.get(".".join(key)):
            message = f"{text}the key is {right}."
            yield Mistake(key, message, near_key=right.rpartition(".")[2])
            continue
        # Keys of another algorithm remain if a user only replaces its name by "auto".
        if error.cl is Auto and extra in _algorithm_keys():
            message = f'{text}"{AUTO}" chooses this setting itself: delete the key.'
            yield Mistake(key, message)
        else:
            near = nearest_name(extra, known)
            yield Mistake(key, text + nearest(extra, known), near_key=near)


def _algorithm_keys() -> set[str]:
    types = list_types("algorithm").values()
    return {item.name for cls in types for item in fields(cls)}


def _dotted(path: tuple[str, ...]) -> str:
    # A key of a file may have line breaks, if it is quoted.
    return one_line(".".join(path))


def _addition(path: tuple[str, ...]) -> str:
    if path == ("algorithm",):
        return f'add: algorithm = "{AUTO}", or a table [algorithm] with a name.'
    return f"add the key to [{_dotted(path[:-1])}]." if path[:-1] else "add the key."
