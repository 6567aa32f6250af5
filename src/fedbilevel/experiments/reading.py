"""An experiment file read into dataclasses; mistakes with their lines and cures."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)

from fedbilevel.experiments.choices import Experiment
from fedbilevel.experiments.conversion import UnknownNameError, converter
from fedbilevel.experiments.locating import located
from fedbilevel.experiments.places import line_of
from fedbilevel.experiments.possible import ImpossibleValueError
from fedbilevel.nearest import nearest


class ExperimentError(ValueError):
    """What is wrong with an experiment file, one line a mistake.

    Example:
        >>> str(ExperimentError("first.toml, line 3: rounds is 0"))
        'first.toml, line 3: rounds is 0'
    """


def read_experiment(file: Path) -> Experiment:
    r"""Read an experiment file.

    Raises:
        ExperimentError: if it asks for what there is not.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "first.toml"
        >>> lines = ["rounds = 5", "[algorithm]", 'name = "FedBiO"', "learning_rat = 1"]
        >>> _ = file.write_text("\n".join(lines))
        >>> try:
        ...     read_experiment(file)
        ... except ExperimentError as error:
        ...     print(str(error).replace(str(file.parent), "…"))
        …/first.toml, line 4: algorithm.learning_rat is not known; did you mean
        learning_rate?
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(
            f"{file} is no text in UTF-8; save it as such."
        ) from error
    try:
        asked = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{file} is no TOML: {error}.") from error
    except RecursionError:
        raise ExperimentError(
            f"{file} is nested too deeply; no experiment has more than three levels."
        ) from None
    try:
        found: Experiment = converter().structure(asked, Experiment)
    except BaseValidationError as error:
        found_at = [
            (line_of(text, (*path, *_key_in(words, asked, path))), words)
            for path, words in _without_echoes(list(_mistakes(error)))
        ]
        raise ExperimentError(
            "\n".join(
                f"{file}, line {line}: {words}" if line else f"{file}: {words}"
                for line, words in sorted(found_at, key=lambda one: one[0] or 0)
            )
        ) from None
    # What a file says of other files is meant from where it is.
    return located(found, file.parent)


def _key_in(words: str, asked: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key of a table that a message about the table is about."""
    for name in path:
        asked = asked.get(name) if isinstance(asked, dict) else None
    named = re.findall(r"\w+", words)
    return tuple(key for key in named if isinstance(asked, dict) and key in asked)[:1]


def _without_echoes(
    mistakes: list[tuple[tuple[str, ...], str]],
) -> list[tuple[tuple[str, ...], str]]:
    """Leave out what is missing only because it was misspelt."""
    meant = {
        (*path[:-1], words.split()[-1].rstrip("?"))
        for path, words in mistakes
        if words.endswith("?")
    }
    return [
        (path, words)
        for path, words in mistakes
        if not (words.endswith(" is missing.") and path in meant)
    ]


def _mistakes(
    error: BaseException, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where each mistake is, and what it is."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        with_notes, others = error.group_exceptions()
        for inner, note in with_notes:
            # A list's places have no names: the list is where the mistake is.
            named = (note.name,) if isinstance(note, AttributeValidationNote) else ()
            yield from _mistakes(inner, (*path, *named))
        for inner in others:
            yield from _mistakes(inner, path)
        return
    name = ".".join(path)
    if isinstance(error, ForbiddenExtraKeysError):
        known = [one.name for one in fields(error.cl)]
        for extra in sorted(error.extra_fields):
            full = (*path, extra)
            cure = nearest(extra, known)
            yield full, f"{'.'.join(full)} is not known; {cure}"
    elif isinstance(error, UnknownNameError):
        cure = nearest(error.given, error.known)
        yield path, f"{name} is {error.given!r}, which is not known; {cure}"
    elif isinstance(error, ImpossibleValueError):
        full = (*path, error.field)
        yield full, f"{'.'.join(full)}: {error.words}"
    elif isinstance(error, KeyError):
        yield path, f"{name} is missing."
    else:
        yield path, f"{name}: {error}"
