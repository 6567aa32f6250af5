"""The secret from which the noise and the participants of a private run follow.

A seed can be searched, and it stands in experiment files and records. So a run with
noise has another source: 32 bytes of the operating system, which only its directory of
checkpoints stores, so that a resumed run repeats its noise.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.engines import multihost
from fedbilevel.engines.checkpoints.options import CheckpointError, Progress
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.participation import UniformSample
from fedbilevel.engines.preparation import Prepared
from fedbilevel.engines.protocol import PrivateEngine
from fedbilevel.mathematics.chacha import SECRET_BYTES, new_secret, secret_key

FILE = "noise_secret"
"""The file of the secret in the directory of checkpoints."""


def with_noise_secret(
    prepared: Prepared, store: Store | None, resumed: Progress | None = None
) -> Prepared:
    """Return a run with random numbers from a secret, if its noise needs one.

    Args:
        prepared: the run.
        store: checkpoints of the run, whose directory stores the secret; None for a
            secret that nothing stores.
        resumed: progress from which the run resumes, with the stored secret.

    Raises:
        CheckpointError: if the stored secret is missing, damaged or readable by others.
    """
    if prepared.spending is None:
        return prepared
    engine = prepared.engine
    assert isinstance(engine, PrivateEngine), "noise requires it"
    if not engine.key_is_secret:
        return prepared
    if store is None:
        return with_secret(prepared, _new_secret(), {})
    if resumed is None:
        secret = replaced_secret(store.directory)
    else:
        secret = stored_secret(store.directory, has_checkpoints=resumed.rounds > 0)
    store.secret_digest = _digest(secret)
    if resumed and resumed.rounds and resumed.secret_digest != store.secret_digest:
        raise CheckpointError(
            f"{store.directory / FILE} is not the secret with which the run began, so "
            "its noise would differ. Restore the file, or start a new run in another "
            "directory, which spends a second ε."
        )
    return with_secret(prepared, secret, store.configuration)


def with_secret(
    prepared: Prepared, secret: bytes, configuration: Mapping[str, Any]
) -> Prepared:
    """Return a run whose random numbers follow from a secret, not from its seed.

    Args:
        prepared: the run.
        secret: secret of the run.
        configuration: settings of the run. With other settings or data the same secret
            gives other noise: the difference of two runs must not be free of noise.
            Data that are loaded on demand are in it by their shapes only.
    """
    text = json.dumps(configuration, sort_keys=True).encode()

    def derived(purpose: bytes, size: int) -> bytes:
        code = hashlib.blake2b(text, digest_size=size, key=secret, person=purpose)
        return code.digest()

    prepared = prepared._replace(
        job=replace(prepared.job, key=secret_key(derived(b"key", 32)))
    )
    # No other sample lowers ε, and the generator of a custom one may need a seed.
    if not isinstance(prepared.participation, UniformSample):
        return prepared
    number = int.from_bytes(derived(b"participants", 16))
    return prepared._replace(participation_seed=number)


def stored_secret(directory: Path, has_checkpoints: bool) -> bytes:
    """Return the secret of a directory of checkpoints; write a new one if it has none.

    Args:
        directory: directory of the checkpoints of a run.
        has_checkpoints: whether the run has made noise that a resumed run must repeat.

    Raises:
        CheckpointError: if the secret is missing, damaged or readable by others.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> secret = stored_secret(directory, has_checkpoints=False)
        >>> stored_secret(directory, has_checkpoints=True) == secret
        True
        >>> oct((directory / FILE).stat().st_mode & 0o777)
        '0o600'
    """
    file = directory / FILE
    # All processes look before one of them writes.
    if multihost.worst(int(file.exists())):
        return _read(file)
    if has_checkpoints:
        raise CheckpointError(
            f"{file} is missing, from which the noise of the run follows, so the run "
            "cannot repeat it. Restore the file, or start a new run in another "
            "directory, which spends a second ε."
        )
    return replaced_secret(directory)


def replaced_secret(directory: Path) -> bytes:
    """Write a new secret to a directory of checkpoints and return it.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> replaced_secret(directory) == replaced_secret(directory)
        False
    """
    secret = _new_secret()
    if multihost.is_first():
        directory.mkdir(parents=True, exist_ok=True)
        with atomic_replace(directory / FILE) as unfinished:
            # The mode is set before the content exists.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(unfinished, flags, 0o600), "w") as opened:
                opened.write(secret.hex())
        _require_hidden(directory / FILE)
    return secret


def _new_secret() -> bytes:
    """Return a new secret, the same in all processes of a run."""
    return bytes(multihost.first(list(new_secret())))


def _read(file: Path) -> bytes:
    try:
        _require_hidden(file)
        secret = bytes.fromhex(file.read_text())
        if len(secret) != SECRET_BYTES:
            raise ValueError
    except CheckpointError:
        raise
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise CheckpointError(
            f"{file}, from which the noise of the run follows, cannot be read: "
            f"{reason}. Restore the file, or start a new run in another directory, "
            "which spends a second ε."
        ) from error
    return secret


def _digest(secret: bytes) -> str:
    return hashlib.blake2b(secret, digest_size=32, person=b"identity").hexdigest()


def _require_hidden(file: Path) -> None:
    if file.stat().st_mode & 0o077:
        raise CheckpointError(
            f"{file} can be read by other users, who could subtract the noise of the "
            "run. Run chmod 600 on it, or choose a directory on a file system that has "
            "permissions."
        )
