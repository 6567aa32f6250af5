"""Reviewed problem files in the kit of a server or site."""

import hashlib
from pathlib import Path

from fedbilevel.atomic_write import atomic_write

PROBLEMS = Path("local") / "problems"
"""Directory of a kit with the reviewed problem files that jobs may name."""


class UnknownCodeError(ValueError):
    """A job names a problem file that was not reviewed for this kit."""


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
        kit: Startup kit of a server or site.
        file: Problem file that the operator has read.

    Returns:
        The SHA-256 of the file.

    Raises:
        ValueError: If the file is not valid Python; nothing is copied then.

    Example:
        >>> import tempfile
        >>> kit = Path(tempfile.mkdtemp())
        >>> (kit / "hospitals.py").write_text("SITES = ()")
        10
        >>> digest = install_code(kit, kit / "hospitals.py")
        >>> find_reviewed(kit, "hospitals.py", digest).name == f"{digest}.py"
        True
    """
    _require_python(file)
    digest = digest_of(file)
    directory = kit / PROBLEMS
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(directory / f"{digest}.py", file.read_bytes())
    return digest


def _require_python(file: Path) -> None:
    if not file.is_file():
        raise ValueError(
            f"{file} is not a file; give the problem file that you reviewed."
        )
    try:
        compile(file.read_bytes(), str(file), "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{file} is not valid Python ({error}); give the problem file that you "
            "reviewed."
        ) from None


def find_reviewed(kit: Path, name: str, sha256: str) -> Path:
    """Return the kit's copy of a problem file that a job names.

    Args:
        kit: Startup kit of a server or site.
        name: Name of the submitter's file, for the error message.
        sha256: SHA-256 in the job.

    Raises:
        UnknownCodeError: If the kit has no file with this SHA-256.

    Example:
        >>> find_reviewed(Path("hospital-1"), "hospitals.py", "00ff")
        Traceback (most recent call last):
        ...
        fedbilevel.deployment.local_code.UnknownCodeError: the problem file hospitals.py
        with SHA-256 00ff is not among the reviewed files of this kit; its operator can
        read the file and allow it with fedbilevel.flare.review(kit, file).
    """
    # No part of a path comes from the job.
    for file in sorted((kit / PROBLEMS).glob("*.py")):
        if file.is_file() and digest_of(file) == sha256:
            return file
    raise UnknownCodeError(
        f"the problem file {name} with SHA-256 {sha256} is not among the reviewed "
        "files of this kit; its operator can read the file and allow it with "
        "fedbilevel.flare.review(kit, file)."
    )
