"""Tests of the tiers that CONTRIBUTING.md describes."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import tier_costs
from tools import tiers

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
ALL_NIGHTLY = re.compile(r"^pytestmark = pytest\.mark\.nightly$", re.M)
SIZES = """
import pytest

@pytest.mark.parametrize("size", [1, pytest.param(9, marks=pytest.mark.nightly)])
def test_size(size):
    assert size == 1
"""
COPIED = "__init__.py", "checking.py", "compiling.py", "conftest.py", "tier_costs.py"
"""Modules of this suite that give a suite its tiers."""
LONG = """
import time

def test_long():
    begin = time.process_time()
    while time.process_time() < begin + 1:
        pass

def test_short():
    pass
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
    for name in COPIED:
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


@pytest.mark.nightly
@pytest.mark.process
def test_a_check_lists_the_nightly_tests(suite):
    (suite / "tests" / "test_heavy.py").unlink()
    output = run_pytest(suite, "-m", "not nightly", "-n", "2")
    assert "1 tests left to make nightly" in output
    assert "1  tests/test_sizes.py" in output
    assert "1 passed" in output


@pytest.mark.nightly
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


@pytest.mark.process
def test_a_session_above_its_budget_fails_and_names_the_longest_tests(suite):
    costs = suite / "tests" / "tier_costs.py"
    text = costs.read_text()
    text = re.sub(r'"quick": [\d.]+', '"quick": 0.5', text)
    costs.write_text(re.sub(r"(QUICK_TEST) = [\d.]+", r"\1 = 0.05", text))
    (suite / "tests" / "test_long.py").write_text(LONG)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-m", "quick", "-n2"]
    process = subprocess.run(command, cwd=suite, capture_output=True, text=True)
    assert process.returncode == 1, process.stdout
    assert "3 passed" in process.stdout
    lines = process.stdout.splitlines()
    (line,) = (line for line in lines if "Shorten it" in line)
    assert line.startswith("tests/test_long.py::test_long took ")
    assert re.search(
        r"The tier `quick` took \d+ s .* its budget is 0.5 s", process.stdout
    )
    (other,) = (line for line in lines if "imports and collection" in line)
    # Both workers and their controller import JAX.
    assert float(other.split()[0]) > 0.5
    assert any(re.fullmatch(r" +[\d.]+ s  tests/test_long.py", line) for line in lines)


def test_a_tier_within_its_budget_has_no_excess():
    costs = tier_costs.Costs(100.0, Counter({"a.py::b": 2}))
    assert tier_costs.excesses(costs, "quick") == []


def test_a_long_test_by_day_is_no_excess_but_one_of_the_quick_tier_is():
    costs = tier_costs.Costs(100.0, Counter({"a.py::b": 9}))
    assert tier_costs.excesses(costs, "not nightly") == []
    (line,) = tier_costs.excesses(costs, "quick")
    assert line.startswith("a.py::b took 9.0 s")


@pytest.mark.process
def test_the_time_of_a_command_includes_its_processes_and_an_empty_cache(tmp_path):
    program = (
        "import os, time\n"
        "assert not os.path.exists(os.environ['JAX_COMPILATION_CACHE_DIR'])\n"
        "while time.process_time() < 0.5: pass\n"
        "raise SystemExit(3)"
    )
    command = (sys.executable, "-c", program)
    times = tiers.measure(command, tmp_path, tmp_path / "compiled")
    assert times.status == 3
    # The timer of the kernel counts in steps of up to 10 ms.
    assert 0.45 < times.processor <= times.elapsed + 0.1
    line = tiers.report("make quick", tiers.Times(118.2, 201.4, 0), 120.0)
    assert line == (
        "make quick: 118 s of at most 120 s, 201 s of processor time, exit status 0"
    )


@pytest.mark.parametrize(
    ("elapsed", "status", "result"), [(119.0, 0, 0), (121.0, 0, 1), (9.0, 2, 1)]
)
def test_a_tier_fails_above_its_limit(elapsed, status, result, monkeypatch, capsys):
    times = tiers.Times(elapsed, 1.0, status)
    monkeypatch.setattr(tiers, "measure", lambda *_: times)
    assert tiers.main([]) == result
    assert "of at most 120 s" in capsys.readouterr().out


def test_budgets_fit_into_the_limits_on_two_cores():
    assert tier_costs.BUDGETS["quick"] <= 2 * tiers.LIMITS[tiers.QUICK]
    assert tier_costs.BUDGETS["not nightly"] <= 2 * (tiers.LIMITS[tiers.CI] - 150)
