"""The files of one checkpoint: verified by digests before anything parses them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp

from fedbilevel.engines.checkpoints.arrays import read_arrays
from fedbilevel.engines.protocol import RunState

DIGESTS = "digests.json"
"""What a checkpoint's files must hash to; in the checkpoint itself."""


class DamageError(ValueError):
    """A checkpoint whose files are not as they were written.

    Example:
        >>> str(DamageError("its files are not as they were written"))
        'its files are not as they were written'
    """


def write_digests(directory: Path) -> None:
    """Add the digests to a checkpoint that is otherwise complete.

    Example:
        >>> write_digests.__name__
        'write_digests'
    """
    (directory / DIGESTS).write_text(json.dumps(dict(_digests(directory))))


def verified_notes(directory: Path) -> dict[str, Any]:
    """Return the notes of a checkpoint whose files are as they were written.

    Raises:
        DamageError: if they are not.

    Example:
        >>> import tempfile
        >>> verified_notes(Path(tempfile.mkdtemp()))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.checkpoints.digests.DamageError: its file digests.json is
        missing
    """
    for path, is_right in (
        (directory, Path.is_dir),
        (directory / DIGESTS, Path.is_file),
    ):
        # A pipe, say, would be waited for.
        if path.exists() and not is_right(path):
            kind = "file" if path.name == DIGESTS else "directory"
            raise DamageError(f"{path.name} is no {kind}")
    try:
        expected = json.loads((directory / DIGESTS).read_text())
        found = dict(_digests(directory))
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise DamageError(f"its file {name} is missing") from error
    except (ValueError, RecursionError) as error:
        raise DamageError(f"its {DIGESTS} is unreadable") from error
    if not expected or expected != found:
        raise DamageError("its files are not as they were written")
    notes: dict[str, Any] = json.loads((directory / "notes" / "metadata").read_text())
    return notes


def read_state(directory: Path, like: RunState) -> RunState | None:
    """Return a verified checkpoint's state, or none if it is not of that form.

    Raises:
        DamageError: if it was whole only to whoever wrote the digests.

    Example:
        >>> read_state.__name__
        'read_state'
    """
    leaves, structure = jax.tree.flatten(like)
    ours = len(jax.tree.leaves(like.server))
    try:
        found = read_arrays(directory / "state")
    except (ValueError, EOFError, KeyError, TypeError, BadZipFile) as error:
        raise DamageError(f"its arrays are unreadable: {error}") from error
    if len(found) != len(leaves):
        return None
    arrays = []
    for place, (array, leaf) in enumerate(zip(found, leaves, strict=True)):
        # A mesh fills private state up to a multiple of its shards.
        array = array if place < ours else array[: len(leaf)]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            return None
        arrays.append(jnp.asarray(array))
    read: RunState = jax.tree.unflatten(structure, arrays)
    return read


def orbax() -> Any:
    """Import the library that writes checkpoints, or say how to get it.

    Example:
        >>> orbax().__name__
        'orbax.checkpoint'
    """
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "checkpoints need orbax-checkpoint; install fedbilevel[checkpoints]."
        ) from error
    return ocp


def _digests(directory: Path) -> Iterator[tuple[str, str]]:
    for item in ("state", "notes"):
        for path in sorted((directory / item).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                name = str(path.relative_to(directory))
                yield name, hashlib.blake2b(content, digest_size=16).hexdigest()
