"""The memory limit: the smallest of machine and control groups."""

import os

import pytest

from fedbilevel.memory import memory_limit

GB = 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    numbers = {"SC_PHYS_PAGES": 16 * 10**6, "SC_PAGE_SIZE": 1000}
    monkeypatch.setattr(os, "sysconf", numbers.__getitem__)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "2000000000\n"}, 2 * GB),
        ("0::/\n", {"memory.max": "max\n"}, 16 * GB),
        ("0::/\n", {"memory.max": "99000000000\n"}, 16 * GB),
        # The limit of a parent group applies too.
        (
            "0::/slurm/job\n",
            {"slurm/memory.max": "3000000000", "slurm/job/memory.max": "max"},
            3 * GB,
        ),
        # Version 1: the path is the host's; no limit is a value near 2^63.
        (
            "5:cpu,cpuacct:/docker/7\n4:memory:/docker/7\n0::/\n",
            {"memory/memory.limit_in_bytes": "4000000000\n"},
            4 * GB,
        ),
        (
            "4:memory:/\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712\n"},
            16 * GB,
        ),
    ],
)
def test_the_smallest_limit_counts(groups, files, limit, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert memory_limit(tmp_path) == limit


def test_without_control_groups_the_machine_counts(tmp_path):
    assert memory_limit(tmp_path) == 16 * GB
