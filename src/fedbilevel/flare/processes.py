"""Start and stop all processes of a startup kit."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

# Environment variable that all processes of a kit inherit, in any session or group.
MARK = "FEDBILEVEL_KIT"
GRACE = 2.0
# NVIDIA FLARE keeps a thread for each received message until its retry timeout (60 s by
# default): thousands of threads on one machine, where exchanges take milliseconds.
RESENT = {"NVFLARE_STREAMING_RETRY_TIMEOUT": "3", "NVFLARE_STREAMING_RETRY_WAIT": "1"}


def start(kit: Path) -> None:
    """Start a server or site with the start script of its kit, including its watchdog.

    The processes inherit this environment and use this Python. They outlive this
    process; their output goes to `console.txt` in the kit.

    Args:
        kit: Startup kit of a server or site.

    Raises:
        RuntimeError: If the kit runs already.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from fedbilevel.flare.provisioning import provision_kits
        >>> with TemporaryDirectory() as directory:
        ...     site = provision_kits(Path(directory), ["site-1"]).sites["site-1"]
        ...     start(site)
        ...     stop(site)
    """
    if running := pids(kit):
        raise RuntimeError(
            f"{kit} runs already (process {running[0]}); stop it first: "
            "fedbilevel.flare.stop(kit)."
        )
    _forget_processes(kit)
    programs = str(Path(sys.executable).parent)
    environment = (
        RESENT
        | os.environ
        | {
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
            MARK: _mark(kit),
        }
    )
    # This variable would make the kit's processes use another directory.
    environment.pop("NVFL_WORKSPACE", None)
    with (kit / "console.txt").open("ab") as console:
        subprocess.run(
            [kit / "startup" / "start.sh"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            check=True,
        )


def stop(*kits: Path) -> None:
    """End all processes of startup kits: by SIGTERM first, by SIGKILL after 2 s.

    Args:
        kits: Startup kits of servers or sites, which need not run.

    Example:
        >>> stop(Path("a kit that does not run"))
    """
    ends = time.monotonic() + GRACE
    signalled: set[psutil.Process] = set()
    # A process may start another meanwhile: repeat until none is left.
    while running := _alive(signalled.union(*map(_processes, kits))):
        late = time.monotonic() > ends
        for process in running if late else running - signalled:
            # The process may have ended meanwhile.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        signalled |= running
        time.sleep(0.05)
    for kit in kits:
        _forget_processes(kit)


def pids(kit: Path) -> list[int]:
    """Return the ids of a kit's processes, including their children.

    Args:
        kit: Startup kit of a server or site.

    Returns:
        Ids of the watchdog, of the server or site, of its jobs' workers and their
        children.

    Example:
        >>> pids(Path("a kit that does not run"))
        []
    """
    return sorted(process.pid for process in _processes(kit))


def _mark(kit: Path) -> str:
    return str(kit.absolute())


def _processes(kit: Path) -> set[psutil.Process]:
    mark = _mark(kit)
    return {process for process in psutil.process_iter() if _mark_of(process) == mark}


def _mark_of(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
    except (psutil.Error, OSError):
        # The process has ended, or belongs to another user.
        return None
    return mark


def _alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    # A zombie is listed until its parent waits for it, which may be never.
    return {
        process
        for process in processes
        if process.is_running() and not _has_ended(process)
    }


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _forget_processes(kit: Path) -> None:
    # Another process may have these ids by now, and the watchdog would wait for it.
    for name in ("daemon_pid.fl", "pid.fl", "shutdown.fl", "restart.fl"):
        (kit / name).unlink(missing_ok=True)
