"""Start and stop what a startup kit runs, down to the last process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

# Inherited by all that a kit starts, whatever session or group it moves to.
MARK = "FEDBILEVEL_KIT"
GRACE = 2.0
# The software keeps a thread for each message that came, as long as it might come again
# (60 s by default): thousands where exchanges take milliseconds, as they do on one
# machine.
RESENT = {"NVFLARE_STREAMING_RETRY_TIMEOUT": "3", "NVFLARE_STREAMING_RETRY_WAIT": "1"}


def start(kit: Path) -> None:
    """Start a server or site as its startup kit does, watchdog included.

    The processes inherit this one's environment and use this Python. They outlive
    this process; what they print goes to `console.txt` in the kit.

    Args:
        kit: Startup kit of a server or site.

    Raises:
        RuntimeError: The kit runs already.

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
    # It would lead the kit's processes to another directory than the kit.
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
    """End all processes of startup kits: asked first, killed after 2 s.

    Args:
        kits: Startup kits of servers or sites, which need not run.

    Example:
        >>> stop(Path("a kit that does not run"))
    """
    ends = time.monotonic() + GRACE
    told: set[psutil.Process] = set()
    # A process may start another while it is told to end: look until none is left.
    while running := _alive(told.union(*map(_processes, kits))):
        late = time.monotonic() > ends
        for process in running if late else running - told:
            # It may end by itself meanwhile.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        told |= running
        time.sleep(0.05)
    for kit in kits:
        _forget_processes(kit)


def pids(kit: Path) -> list[int]:
    """Processes of a kit that `start` started, and all that these started.

    Args:
        kit: Startup kit of a server or site.

    Returns:
        Their ids: watchdog, server or site, the workers of its jobs, their children.

    Example:
        >>> pids(Path("a kit that does not run"))
        []
    """
    return sorted(process.pid for process in _processes(kit))


def _mark(kit: Path) -> str:
    return str(kit.absolute())


def _processes(kit: Path) -> set[psutil.Process]:
    wanted = _mark(kit)
    return {each for each in psutil.process_iter() if _marked(each) == wanted}


def _marked(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
    except (psutil.Error, OSError):
        # It ended meanwhile, or is another user's and thus none of ours.
        return None
    return mark


def _alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    # One that ended is listed until its parent takes note, which may be never.
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
    # Another process may bear these ids by now, and the watchdog would wait for it.
    for name in ("daemon_pid.fl", "pid.fl", "shutdown.fl", "restart.fl"):
        (kit / name).unlink(missing_ok=True)
