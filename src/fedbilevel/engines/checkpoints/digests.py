"""The files of one checkpoint, verified by digests before they are parsed."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax

from fedbilevel.engines.checkpoints.arrays import read_arrays
from fedbilevel.engines.protocol import RunState
from fedbilevel.extras import needs
from fedbilevel.mathematics.arrays import on_host, restore

DIGESTS = "digests.json"
"""The file with the digests of all other files of a checkpoint."""


class DamageError(ValueError):
    """Files of a checkpoint are missing, or differ from their digests."""


def write_digests(directory: Path) -> None:
    """Write the file of digests of a checkpoint, as its last file."""
    (directory / DIGESTS).write_text(json.dumps(dict(_digests(directory))))


def verified_notes(directory: Path) -> dict[str, Any]:
    """Return the notes of a checkpoint after verifying its digests.

    Raises:
        DamageError: if a file is missing or differs from its digest.

    Example:
        >>> import tempfile
        >>> verified_notes(Path(tempfile.mkdtemp()))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.checkpoints.digests.DamageError: File digests.json is
        missing.
    """
    for path, is_right in (
        (directory, Path.is_dir),
        (directory / DIGESTS, Path.is_file),
    ):
        # Reading a pipe would block.
        if path.exists() and not is_right(path):
            kind = "file" if path.name == DIGESTS else "directory"
            raise DamageError(f"{path.name} is not a {kind}.")
    try:
        expected = json.loads((directory / DIGESTS).read_text())
        actual = dict(_digests(directory))
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise DamageError(f"File {name} is missing.") from error
    except (ValueError, RecursionError) as error:
        raise DamageError(f"File {DIGESTS} is not valid JSON.") from error
    if not expected or expected != actual:
        raise DamageError(f"Its files differ from the digests in {DIGESTS}.")
    notes: dict[str, Any] = json.loads((directory / "notes" / "metadata").read_text())
    return notes


def read_state(directory: Path, like: RunState) -> RunState | None:
    """Return the state of a verified checkpoint, or None if its form differs.

    Raises:
        DamageError: if arrays cannot be read although their digests are right.
    """
    leaves, structure = jax.tree.flatten(like)
    server_count = len(jax.tree.leaves(like.server))
    try:
        stored = read_arrays(directory / "state")
    except (ValueError, EOFError, KeyError, TypeError, BadZipFile) as error:
        raise DamageError(f"Its arrays cannot be read: {error}") from error
    if len(stored) != len(leaves):
        return None
    arrays = []
    for index, (array, leaf) in enumerate(zip(stored, leaves, strict=True)):
        # A mesh pads private state to a multiple of its shards.
        array = array if index < server_count else array[: len(leaf)]
        if array.shape != leaf.shape or array.dtype != on_host(leaf).dtype:
            return None
        arrays.append(restore(array, leaf))
    state: RunState = jax.tree.unflatten(structure, arrays)
    return state


def orbax() -> Any:
    """Return the module `orbax.checkpoint`, or raise ImportError with a remedy."""
    with needs("Checkpoints", "orbax-checkpoint", "'fedbilevel[checkpoints]'"):
        import orbax.checkpoint as ocp
    return ocp


def _digests(directory: Path) -> Iterator[tuple[str, str]]:
    for item in ("state", "notes"):
        for path in sorted((directory / item).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                name = str(path.relative_to(directory))
                yield name, hashlib.blake2b(content, digest_size=16).hexdigest()
