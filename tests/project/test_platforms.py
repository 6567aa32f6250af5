"""Tests that need an interface of Linux are skipped on macOS."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.platforms import require_linux

TESTS = Path(__file__).parents[1]
LINUX_ONLY = re.compile(
    r"/proc/|/dev/shm|\bstatm\b|RLIMIT_AS|LD_PRELOAD|\bsetsid\b|\bwaitid\b|sched_\w+"
    r"|prctl|SIGRT|\"timeout\", |readlink -f|sed -i"
)
GUARDED = {
    "commands/test_batch.py": "replaces os.sched_getaffinity, which need not exist",
    "conftest.py": "checks that /proc exists",
    "datasets/test_site_sets.py": "has the column sched_dep_time of flights",
    "federation/computations.py": "its callers in test_worker.py skip",
    "hostile/test_cli.py": "/proc/x is a directory that nobody can create",
    "project/test_platforms.py": "lists the interfaces",
}
"""Files without `require_linux`, and why they work on macOS."""


def test_files_that_use_interfaces_of_linux_skip_elsewhere():
    users = {
        str(file.relative_to(TESTS)): file.read_text()
        for file in TESTS.rglob("*.py")
        if LINUX_ONLY.search(file.read_text())
    }
    assert GUARDED.keys() <= users.keys()
    skipping = {name for name, text in users.items() if "require_linux()" in text}
    assert users.keys() - skipping == GUARDED.keys() - skipping


def test_types_are_checked_for_every_platform_of_the_classifiers():
    root = TESTS.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    systems = [name for name in project["classifiers"] if "Operating System" in name]
    assert [name.rpartition(" :: ")[2] for name in systems] == ["MacOS", "Linux"]
    recipe = (
        (root / "Makefile").read_text().partition("\nnightly:")[2].partition("\n\n")[0]
    )
    # Caches of two platforms in one directory would replace each other.
    assert "mypy --platform darwin --cache-dir .mypy_cache/darwin\n" in recipe


def test_a_test_is_skipped_off_linux_only(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    require_linux()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(pytest.skip.Exception, match="interface of Linux"):
        require_linux()
