"""Helpers that observe processes: descendants, memory, end."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.platforms import require_linux
from tests.waiting import until


def descendants(pid: int) -> set[int]:
    """Return all descendants of a process."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def command_lines(pids: Iterable[int]) -> dict[int, str]:
    """Return the command lines of the processes that are alive."""
    result = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            result[pid] = " ".join(psutil.Process(pid).cmdline())
    return result


def listening(pids: Iterable[int]) -> set[str]:
    """Return the addresses on which live processes listen."""
    result = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            for connection in psutil.Process(pid).net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    result.add(connection.laddr.ip)
    return result


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has, unless its threads live.

    A killed process is a zombie as soon as its main thread has ended, but its parent
    cannot see the end before that of the last thread.
    """
    try:
        process = psutil.Process(pid)
        is_zombie = bool(process.status() == psutil.STATUS_ZOMBIE)
        return is_zombie and bool(process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def until_gone(pids: Iterable[int]) -> None:
    """Wait until all processes have ended; fail after a timeout."""
    pids = set(pids)
    until(lambda: all(map(gone, pids)), lambda: f"of {pids} some still live", 0.02)


def memory(pids: Iterable[int]) -> int:
    """Return the anonymous memory of processes in bytes, including swap.

    USS and PSS depend on other processes that load the same libraries. Measured for one
    process with JAX while two more began and ended: PSS 125 to 103 MB, USS 78 to 75 MB,
    this function always 75 MB. Ended processes count as 0.
    """
    require_linux()
    return sum(_memory(pid) for pid in pids)


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # A zombie has none of these lines.
    held = dict(line.split(":", 1) for line in lines)
    return 1024 * sum(
        int(held.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap")
    )
