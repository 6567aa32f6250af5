"""The memory that this process may use: the machine's, or a container's share."""

import os
from collections.abc import Iterator
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes that this process may use at most.

    The machine's memory, or the smallest limit of the control groups that hold this
    process: a container or a batch system ends a process that exceeds it.

    Args:
        root: the directory that holds `proc` and `sys`; another one in tests.

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
        # A limit holds for all groups below. Within a container the path may be that of
        # the host, of which only the mounted top exists.
        group = Path(path.lstrip("/"))
        for one in (group, *group.parents):
            limit = _number(base / one / name)
            if limit is not None:
                yield limit


def _number(file: Path) -> int | None:
    """Return the number in a file; None without a file, or if it holds "max"."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
