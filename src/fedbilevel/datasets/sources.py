"""Where the files of a data set are looked for, and how they are checked."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

Contents: TypeAlias = Mapping[str, bytes]
Loaded = TypeVar("Loaded")

VARIABLE = "FEDBILEVEL_DATA"
CACHE = Path(".data")


class File(NamedTuple):
    """A file of a data set.

    Attributes:
        name: its name; it may also lie there gzipped, with `.gz` after the name.
        sha256: the SHA-256 of its content, uncompressed.

    Example:
        >>> import hashlib
        >>> File("greeting.txt", hashlib.sha256(b"hello").hexdigest()).sha256[:8]
        '2cf24dba'
    """

    name: str
    sha256: str


class Source(NamedTuple):
    """A data set's files and the places where they may be.

    Attributes:
        name: of the set, and of its directory in the cache.
        files: all that is needed.
        package: a published package that holds the files, for the error message.
        system_directories: where an operating system's package puts them.

    Example:
        >>> Source("tiny", (File("a.txt", "00"),), "the npm package tiny").files[0].name
        'a.txt'
    """

    name: str
    files: tuple[File, ...]
    package: str
    system_directories: tuple[Path, ...] = ()


class Hub(NamedTuple):
    """A data set on the Hugging Face hub, whose rows are those of the files.

    Attributes:
        repository: its name there.
        convert: makes the result from the splits that `datasets.load_dataset` returns.

    Example:
        >>> Hub("ylecun/mnist", convert=len).convert({"train": [], "test": []})
        2
    """

    repository: str
    convert: Callable[[Any], Any]


def load(
    source: Source,
    parse: Callable[[Contents], Loaded],
    *,
    directory: Path | str | None = None,
    hub: Hub | None = None,
) -> Loaded:
    """Return a data set from the first place that has it.

    The places are `$FEDBILEVEL_DATA/<name>`, `.data/<name>` under the current
    directory, the system's directories, and the hub. If `directory` is given, it is the only
    place: another copy would hide a mistake in its name.

    Args:
        source: the files, and where a system keeps them.
        parse: makes the result from the files' contents by name, uncompressed.
        directory: where the files are.
        hub: where the same rows are on the Hugging Face hub.

    Returns:
        What `parse` or `hub.convert` makes of it.

    Raises:
        FileNotFoundError: no place has the files; says why of each.
        ValueError: a file is not the published one, or is damaged.

    Example:
        >>> import hashlib, tempfile
        >>> digest = hashlib.sha256(b"hello").hexdigest()
        >>> source = Source("tiny", (File("a.txt", digest),), "the npm package tiny")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = (Path(directory) / "a.txt").write_bytes(b"hello")
        ...     load(source, lambda contents: contents["a.txt"], directory=directory)
        b'hello'
    """
    failures: list[str] = []
    cause: Exception | None = None
    for label, place in _places(source, directory):
        if place is None:
            failures.append(f"{label}: the variable is not set")
        elif not place.is_dir():
            failures.append(f"{label}: no such directory")
        else:
            paths = {file: _path(place, file) for file in source.files}
            lacking = [file.name for file, path in paths.items() if not path]
            if not lacking:
                return parse({f.name: _content(p, f) for f, p in paths.items() if p})
            failures.append(f"{label}: lacks {', '.join(lacking)}")
    if hub is not None and directory is None:
        try:
            rows = _rows(hub.repository)
        except Exception as error:
            # Whatever the download raises is the reason why this place failed too.
            cause = error
            failures.append(
                f"{hub.repository} on the Hugging Face hub: "
                f"{type(error).__name__}: {error}"
            )
        else:
            return hub.convert(rows)  # type: ignore[no-any-return]
    raise FileNotFoundError(_message(source, failures)) from cause


def find_directory(source: Source) -> Path | None:
    """Return the directory that has all files of a data set; nothing is read or fetched.

    Example:
        >>> find_directory(Source("tiny", (File("a.txt", ""),), "the npm package tiny"))
    """
    for _, place in _places(source, None):
        if place is not None and all(_path(place, file) for file in source.files):
            return place
    return None


def _places(
    source: Source, directory: Path | str | None
) -> Iterator[tuple[str, Path | None]]:
    if directory is not None:
        yield str(directory), Path(directory)
        return
    root = os.environ.get(VARIABLE)
    yield f"${VARIABLE}/{source.name}", Path(root) / source.name if root else None
    for place in (CACHE / source.name, *source.system_directories):
        yield str(place), place


def _path(directory: Path, file: File) -> Path | None:
    candidates = directory / file.name, directory / f"{file.name}.gz"
    return next((path for path in candidates if path.is_file()), None)


def _content(path: Path, file: File) -> bytes:
    content = path.read_bytes()
    if path.name != file.name:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path} is damaged: it cannot be unzipped ({error}); replace it."
            ) from error
    check(str(path), content, file, "replace or remove the file")
    return content


def check(name: str, content: bytes, file: File, cure: str) -> None:
    """Refuse content that is not that of a published file.

    Args:
        name: where the content is from, for the message.
        content: uncompressed.
        file: as it was published.
        cure: what to do, for the message.

    Raises:
        ValueError: if it is not.

    Example:
        >>> digest = hashlib.sha256(b"hello").hexdigest()
        >>> check("here", b"hello", File("greeting.txt", digest), "replace it")
    """
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"{name} is not the published {file.name}: the SHA-256 of its content is "
            f"{found} instead of {file.sha256}; {cure}."
        )


def _rows(repository: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "the library `datasets` is not installed; run: pip install datasets"
        ) from error
    return load_dataset(repository)


def _message(source: Source, failures: Sequence[str]) -> str:
    names = ", ".join(file.name for file in source.files)
    return "\n".join(
        [
            f"the data set {source.name} was not found.",
            *(f"- {failure}" for failure in failures),
            f"Its files are {names}, from {source.package}: name their directory with "
            f"`directory`, or put them, gzipped or not, into {CACHE / source.name}, which "
            f"`python -m benchmarks.fetch_data {source.name}` does in a checkout.",
        ]
    )
