"""A federation on this machine: real startup kits, real processes, mutual TLS."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbilevel.flare.administrator import open_session
from fedbilevel.flare.message_limits import DEFAULT
from fedbilevel.flare.processes import pids, start, stop
from fedbilevel.flare.provisioning import Kits, is_free, port, provision_kits

__all__ = ["Kits", "connected_sites", "pids", "rehearsal", "session", "start", "stop"]

PATIENCE = 90.0


@contextmanager
def rehearsal(
    directory: Path, sites: Sequence[str], message_limit: int = DEFAULT
) -> Iterator[Kits]:
    """Run a server and sites on this machine while the block runs.

    Everything is as in a federation of several machines, except that the server
    answers on the loopback only. No process is left when the block is left.

    Args:
        directory: Where the kits are, or are made if not there yet.
        sites: Names of the sites.
        message_limit: Bytes of the largest message.

    Yields:
        Where the startup kits are, once all sites are connected.

    Raises:
        ValueError: The directory holds the kits of other sites.
        RuntimeError: A kit runs already, or the server's port is taken.
        TimeoutError: A site did not connect within 90 s.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     with rehearsal(Path(directory), ["site-1"]) as kits:
        ...         connected_sites(kits)
        {'site-1'}
    """
    kits = provision_kits(directory, sites, message_limit)
    if not pids(kits.server) and not is_free(port(kits.server)):
        raise RuntimeError(
            f"port {port(kits.server)} of the rehearsal in {directory} is taken; end what "
            "listens there, or choose another directory."
        )
    started: list[Path] = []
    try:
        for kit in (kits.server, *kits.sites.values()):
            start(kit)
            started.append(kit)
        _wait(kits)
        yield kits
    finally:
        stop(*started)


@contextmanager
def session(kits: Kits) -> Iterator[Any]:
    """The administrator's session with the server: nvflare's `Session`.

    Args:
        kits: Kits of a federation that runs.

    Yields:
        The session, which can submit jobs; closed when the block is left.

    Raises:
        ConnectionError: No server answers.

    Example:
        >>> nobody = Kits(Path("server"), {}, Path("no"), Path("no"))
        >>> with session(nobody) as administrator:
        ...     administrator.list_jobs()
        Traceback (most recent call last):
        ConnectionError: no server answers to kit no: no is no startup kit of an
        administrator: it has no startup/fed_admin.json.
    """
    try:
        opened = open_session(kits.admin)
    except Exception as error:
        raise ConnectionError(
            f"no server answers to kit {kits.admin}: {error}"
        ) from error
    try:
        yield opened
    finally:
        opened.close()


def connected_sites(kits: Kits) -> set[str]:
    """Names of the sites that the server holds for connected now.

    Args:
        kits: Kits of a federation that runs.

    Returns:
        The names.

    Raises:
        ConnectionError: No server answers.

    Example:
        >>> connected_sites(Kits(Path("server"), {}, Path("no"), Path("no")))
        Traceback (most recent call last):
        ConnectionError: no server answers to kit no: no is no startup kit of an
        administrator: it has no startup/fed_admin.json.
    """
    with session(kits) as administrator:
        return _names(administrator)


def _names(administrator: Any) -> set[str]:
    return {client.name for client in administrator.get_system_info().client_info}


def _wait(kits: Kits) -> None:
    ends = time.monotonic() + PATIENCE
    missing = set(kits.sites)
    while missing and time.monotonic() < ends:
        time.sleep(0.2)
        if not _answers(port(kits.server)):
            continue
        try:
            with session(kits) as administrator:
                while missing and time.monotonic() < ends:
                    missing = set(kits.sites) - _names(administrator)
                    time.sleep(0.2)
        except ConnectionError:
            continue  # It listens before it serves.
    if missing:
        raise TimeoutError(
            f"{', '.join(sorted(missing))} did not connect within {PATIENCE:.0f} s; "
            f"see console.txt in {kits.server} and in the kits of the sites."
        )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
