"""Tests of the tiers that CONTRIBUTING.md describes."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
ALL_NIGHTLY = re.compile(r"^pytestmark = pytest\.mark\.nightly$", re.M)
SIZES = """
import pytest

@pytest.mark.parametrize("size", [1, pytest.param(9, marks=pytest.mark.nightly)])
def test_size(size):
    assert size == 1
"""
HEAVY = """
import a_package_that_is_not_there
import pytest

pytestmark = pytest.mark.process
"""

ENDS_ITS_WORKER = """
import os

def test_exit():
    os._exit(9)
"""


def test_a_quick_test_that_starts_a_process_fails():
    with pytest.raises(RuntimeError, match=r"starts a process .* Mark it `process`"):
        subprocess.run([sys.executable, "--version"], check=True)
    with pytest.raises(RuntimeError, match="starts a process"):
        os.fork()


def test_every_nightly_module_is_named_by_its_smaller_version():
    nightly = {file for file in MODULES if ALL_NIGHTLY.search(file.read_text())}
    assert nightly
    by_day = [ast.parse(file.read_text()) for file in MODULES if file not in nightly]
    named = " ".join(ast.get_docstring(tree) or "" for tree in by_day)
    for file in nightly:
        assert f"`{file.stem}`" in named


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A small test suite with the tiers of this one and two modules."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("__init__.py", "checking.py", "compiling.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tests / "test_sizes.py").write_text(SIZES)
    (tests / "test_heavy.py").write_text(HEAVY)
    return tmp_path


def run_pytest(suite: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", *arguments]
    process = subprocess.run(command, cwd=suite, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    return process.stdout


@pytest.mark.process
def test_a_check_lists_the_nightly_tests(suite):
    (suite / "tests" / "test_heavy.py").unlink()
    output = run_pytest(suite, "-m", "not nightly", "-n", "2")
    assert "1 tests left to make nightly" in output
    assert "1  tests/test_sizes.py" in output
    assert "1 passed" in output


@pytest.mark.process
def test_a_test_that_ends_its_worker_is_named(suite):
    (suite / "tests" / "test_heavy.py").write_text(ENDS_ITS_WORKER)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-n", "1"]
    process = subprocess.run(command, cwd=suite, capture_output=True, text=True)
    assert "crashed while running 'tests/test_heavy.py::test_exit'" in process.stdout
    assert "INTERNALERROR" not in process.stdout


@pytest.mark.process
def test_the_quick_tier_does_not_import_modules_without_quick_tests(suite):
    output = run_pytest(suite, "-m", "quick")
    assert "1 passed" in output
    assert "left to make nightly" not in output
