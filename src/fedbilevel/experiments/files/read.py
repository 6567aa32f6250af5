"""Read experiment files; report mistakes with file, line, key, value and cure."""

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)

from fedbilevel.experiments.files.convert import converter
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.renamed_keys import RENAMED
from fedbilevel.experiments.files.toml_lines import line_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import AUTO, UnknownNameError
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.nearest import nearest, nearest_name


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
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ExperimentError(
            f"{file} cannot be read: {error.strerror}; give the path of an experiment "
            "file, or write one with: fedbilevel new NAME."
        ) from error
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
    except RecursionError:
        raise ExperimentError(
            f"{file} is nested too deeply; an experiment file has at most three levels."
        ) from None
    try:
        experiment: Experiment = converter().structure(document, Experiment)
    except BaseValidationError as error:
        mistakes = _without_echoes(list(_mistakes(error)))
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


class _Mistake(NamedTuple):
    path: tuple[str, ...]  # The key and its tables, outermost first.
    message: str
    near_key: str | None = None  # The known key that an unknown key resembles.
    missing: bool = False


def _without_echoes(mistakes: list[_Mistake]) -> list[_Mistake]:
    """Omit keys that are missing only because they are misspelt."""
    near = {(*item.path[:-1], item.near_key) for item in mistakes if item.near_key}
    return [item for item in mistakes if not (item.missing and item.path in near)]


def _mistakes(error: BaseException, path: tuple[str, ...] = ()) -> Iterator[_Mistake]:
    if isinstance(error, ClassValidationError | IterableValidationError):
        with_notes, others = error.group_exceptions()
        for inner, note in with_notes:
            # Elements of a list have no keys, so the list's key is reported.
            name = (note.name,) if isinstance(note, AttributeValidationNote) else ()
            yield from _mistakes(inner, (*path, *name))
        for inner in others:
            yield from _mistakes(inner, path)
        return
    if isinstance(error, ForbiddenExtraKeysError):
        known = [item.name for item in fields(error.cl)]
        for extra in sorted(error.extra_fields):
            key = (*path, extra)
            dotted = ".".join(key)
            if new := RENAMED.get(dotted):
                message = f"{dotted} was renamed to {new}; write the new key."
                yield _Mistake(key, message, near_key=new.rpartition(".")[2])
                continue
            message = f"unknown key {dotted}; {nearest(extra, known)}"
            yield _Mistake(key, message, near_key=nearest_name(extra, known))
    elif isinstance(error, UnknownNameError):
        key = (*path, error.key) if error.key else path
        cure = nearest(error.name, error.known)
        yield _Mistake(key, f"{'.'.join(key)}: unknown name {error.name!r}; {cure}")
    elif isinstance(error, SettingError):
        key = (*path, error.field)
        yield _Mistake(key, f"{'.'.join(key)}: {error.cure}")
    elif isinstance(error, KeyError):
        message = f"{'.'.join(path)} is missing; {_addition(path)}"
        yield _Mistake(path, message, missing=True)
    else:
        yield _Mistake(path, f"{'.'.join(path)}: {error}")


def _addition(path: tuple[str, ...]) -> str:
    if path == ("algorithm",):
        return f'add: algorithm = "{AUTO}", or a table [algorithm] with a name.'
    return f"add the key to [{'.'.join(path[:-1])}]." if path[:-1] else "add the key."
