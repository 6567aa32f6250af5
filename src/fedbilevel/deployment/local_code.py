"""Problem files that the people of a site or server have read, kept in its kit."""

import hashlib
import shutil
from pathlib import Path

from fedbilevel.atomic_write import atomic_replace

PROBLEMS = Path("local") / "problems"
"""The directory of a kit with the files that jobs may name, and none may bring."""


class UnknownCodeError(ValueError):
    """A job names a problem file that nobody here has read.

    Example:
        >>> str(UnknownCodeError("hospitals.py is not among the reviewed ones"))
        'hospitals.py is not among the reviewed ones'
    """


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "empty.py"
        >>> _ = file.write_text("")
        >>> digest_of(file)[:8]
        'e3b0c442'
    """
    return hashlib.sha256(file.read_bytes()).hexdigest()


def install_code(kit: Path, file: Path) -> str:
    """Copy a problem file into a kit, for jobs that name it by its SHA-256.

    Args:
        kit: Of a server or site.
        file: That its operator has read.

    Returns:
        The SHA-256 of the file.

    Raises:
        ValueError: If it is no Python that could be executed; nothing is kept then.

    Example:
        >>> import tempfile
        >>> kit = Path(tempfile.mkdtemp())
        >>> (kit / "hospitals.py").write_text("SITES = ()")
        10
        >>> digest = install_code(kit, kit / "hospitals.py")
        >>> reviewed(kit, "hospitals.py", digest).name == f"{digest}.py"
        True
    """
    _require_python(file)
    digest = digest_of(file)
    directory = kit / PROBLEMS
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_replace(directory / f"{digest}.py") as unfinished:
        shutil.copyfile(file, unfinished)
    return digest


def _require_python(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{file} is no file; give the problem's file that you read.")
    try:
        compile(file.read_bytes(), str(file), "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{file} is no Python ({error}); give the problem's file that you read."
        ) from None


def reviewed(kit: Path, name: str, sha256: str) -> Path:
    """Return this kit's own copy of a problem file that a job names.

    Args:
        kit: Startup kit of a server or site.
        name: Of the file where it is from, for the message.
        sha256: That the job gives.

    Raises:
        UnknownCodeError: If the kit has no such file.

    Example:
        >>> reviewed(Path("hospital-1"), "hospitals.py", "00ff")
        Traceback (most recent call last):
        ...
        fedbilevel.deployment.local_code.UnknownCodeError: the problem file hospitals.py
        with the SHA-256 00ff is not among the reviewed ones of this kit; its operator
        can read the file and allow it by fedbilevel.flare.review.
    """
    # What a job says is not made part of a path.
    for file in sorted((kit / PROBLEMS).glob("*.py")):
        if file.is_file() and digest_of(file) == sha256:
            return file
    raise UnknownCodeError(
        f"the problem file {name} with the SHA-256 {sha256} is not among the reviewed "
        "ones of this kit; its operator can read the file and allow it by "
        "fedbilevel.flare.review."
    )
