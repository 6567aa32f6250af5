"""An experiment file read into dataclasses; mistakes with their lines and cures."""

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
from fedbilevel.experiments.files.toml_lines import line_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import UnknownNameError
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.nearest import nearest, nearest_name


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
        mistakes = _without_echoes(list(_mistakes(error)))
        found_at = [(line_of(text, one.path), one.words) for one in mistakes]
        raise ExperimentError(
            "\n".join(
                f"{file}, line {line}: {words}" if line else f"{file}: {words}"
                for line, words in sorted(found_at, key=lambda one: one[0] or 0)
            )
        ) from None
    # What a file says of other files is meant from where it is.
    return located(found, file.parent)


class _Mistake(NamedTuple):
    path: tuple[str, ...]  # of the setting
    words: str
    meant: str | None = None  # the setting whose name was misspelt
    missing: bool = False


def _without_echoes(mistakes: list[_Mistake]) -> list[_Mistake]:
    """Leave out what is missing only because it was misspelt."""
    meant = {(*one.path[:-1], one.meant) for one in mistakes if one.meant}
    return [one for one in mistakes if not (one.missing and one.path in meant)]


def _mistakes(error: BaseException, path: tuple[str, ...] = ()) -> Iterator[_Mistake]:
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
            words = f"{'.'.join(full)} is not known; {nearest(extra, known)}"
            yield _Mistake(full, words, meant=nearest_name(extra, known))
    elif isinstance(error, UnknownNameError):
        cure = nearest(error.given, error.known)
        words = f"{name} is {error.given!r}, which is not known; {cure}"
        yield _Mistake(path, words)
    elif isinstance(error, SettingError):
        full = (*path, error.field)
        yield _Mistake(full, f"{'.'.join(full)}: {error.cure}")
    elif isinstance(error, KeyError):
        yield _Mistake(path, f"{name} is missing.", missing=True)
    else:
        yield _Mistake(path, f"{name}: {error}")
