"""The memory limit of this process: of the machine or of its container."""

import os
from collections.abc import Iterator
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int:
    """Return the memory limit of this process in bytes.

    It is the machine's memory, or the smallest limit of the control groups of this
    process: a container or a batch system kills a process that exceeds it.

    Args:
        root: directory that contains `proc` and `sys`; tests use another one.

    Example:
        >>> 0 < memory_limit() <= os.sysconf("SC_PHYS_PAGES") * 2**16
        True
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit applies to all groups below. Within a container the path may be that
        # of the host, of which only the mounted top exists.
        group = Path(path.lstrip("/"))
        for ancestor in (group, *group.parents):
            limit = _number(base / ancestor / name)
            if limit is not None:
                yield limit


def _number(file: Path) -> int | None:
    """Return the number in a file; None without a file, or if it contains "max"."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
