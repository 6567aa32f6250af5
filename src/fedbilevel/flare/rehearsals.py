"""Rehearsals: federations on this machine, with startup kits, processes, mutual TLS."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbilevel.flare.administrator import open_session, username
from fedbilevel.flare.message_limits import DEFAULT
from fedbilevel.flare.processes import pids, start, stop
from fedbilevel.flare.provisioning import Kits, is_free, port, provision_kits

__all__ = ["Kits", "connected_sites", "pids", "rehearsal", "session", "start", "stop"]

CONNECT_SECONDS = 90.0
"""Timeout for all sites to connect."""


@contextmanager
def rehearsal(
    directory: Path, sites: Sequence[str], message_limit: int = DEFAULT
) -> Iterator[Kits]:
    """Run a server and sites on this machine while the block runs.

    The processes are those of a federation of several machines, except that the server
    listens on the loopback interface only. All processes end with the block.

    Args:
        directory: Directory of the kits, which are created if missing.
        sites: Names of the sites.
        message_limit: Bytes of the largest message.

    Yields:
        Paths of the startup kits, once all sites are connected.

    Raises:
        ValueError: If the directory contains the kits of other sites.
        RuntimeError: If a kit runs already, or the server's port is in use.
        TimeoutError: If a site does not connect within 90 s.

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
            f"Port {port(kits.server)} of the rehearsal in {directory} is in use; end "
            "the process that listens there, or choose another directory."
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
    """Open an administrator's session with the server: nvflare's `Session`.

    Args:
        kits: Kits of a running federation.

    Yields:
        The session, which can submit jobs; closed at the end of the block.

    Raises:
        ValueError: If `kits.admin` is not a startup kit of an administrator.
        ConnectionError: If the server does not answer.

    Example:
        >>> kits = Kits(Path("server"), {}, Path("no"), Path("no"))
        >>> with session(kits) as administrator:
        ...     administrator.list_jobs()
        Traceback (most recent call last):
        ValueError: no is not a startup kit of an administrator:
        startup/fed_admin.json is missing. Give the directory that nvflare provision
        created for an administrator.
    """
    username(kits.admin)
    try:
        opened = open_session(kits.admin)
    except Exception as error:
        raise ConnectionError(
            f"No server answers to kit {kits.admin}: "
            f"{str(error).strip('. ') or type(error).__name__}. Start the processes "
            f"with rehearsal(), or see console.txt in {kits.server}."
        ) from error
    try:
        yield opened
    finally:
        opened.close()


def connected_sites(kits: Kits) -> set[str]:
    """Return the names of the connected sites.

    Args:
        kits: Kits of a running federation.

    Returns:
        The names, as the server reports them.

    Raises:
        ValueError: If `kits.admin` is not a startup kit of an administrator.
        ConnectionError: If the server does not answer.

    Example:
        >>> connected_sites(Kits(Path("server"), {}, Path("no"), Path("no")))
        Traceback (most recent call last):
        ValueError: no is not a startup kit of an administrator:
        startup/fed_admin.json is missing. Give the directory that nvflare provision
        created for an administrator.
    """
    with session(kits) as administrator:
        return _names(administrator)


def _names(administrator: Any) -> set[str]:
    return {client.name for client in administrator.get_system_info().client_info}


def _wait(kits: Kits) -> None:
    ends = time.monotonic() + CONNECT_SECONDS
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
            continue  # The server listens before it accepts sessions.
    if missing:
        raise TimeoutError(
            f"{', '.join(sorted(missing))} did not connect within "
            f"{CONNECT_SECONDS:.0f} s; see console.txt in {kits.server} and in the "
            "kits of the sites."
        )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
