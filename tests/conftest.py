"""Precision, tiers and compiled programs of the test suite.

Tests of mathematics run in x64 with strict dtype promotion and no rank promotion.
A test belongs to the quick tier unless it, or its module, is marked `process`, `slow`
or `nightly`; see CONTRIBUTING.md, "Tests".
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.compiling import for_devices

# The sharded engine has 4 devices. What one process has compiled others need not.
os.environ.setdefault("XLA_FLAGS", for_devices(4))
# Loading such a program says much about machines, into pipes that nobody reads.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# What tests have executed is nothing to the user who runs them.
os.environ["XDG_STATE_HOME"] = str(CACHE.parent / "state")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

MOST_MAPS, MOST_BYTES = 30_000, 2 * 10**9
"""Memory maps of a process, and growth of its memory, at which it drops programs."""
SETTINGS = "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"
"""Settings of JAX for the whole process, which no test may leave changed."""
NOT_QUICK = "process", "slow", "nightly"
"""Markers of tests that the quick tier leaves out."""
STARTS_A_PROCESS = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
}
"""Audit events of the interpreter that a quick test must not raise."""
ALL_MARKED = re.compile(rf"^pytestmark = pytest\.mark\.({'|'.join(NOT_QUICK)})$", re.M)
"""How a module says that none of its tests is quick."""
PROCESSES_IN_DOCTESTS = (
    "src/fedbilevel/commands/worker.py",
    "src/fedbilevel/federation/worker/",
    "src/fedbilevel/flare/",
)
"""Modules whose docstrings start processes in their examples."""
NIGHTLY_DOCTESTS = {
    "algorithms.device_adjoint.solve_adjoint",
    "engines.final_points.final_points",
    "engines.query_session.QuerySession",
    "engines.mean.merge_across",
    "engines.run.best_round",
    "engines.sweep.sweep",
    "federation.server.Federation",
    "flare.rehearsals.rehearsal",
    "metrics.diagnosis.diagnose",
    "metrics.estimation.estimate_assumptions",
    "metrics.instability.find_instabilities",
    "metrics.suggestion.batch_curvature",
    "problems.task.Task",
    "tracking.delivery.track",
    "tuning.tuner.tune",
}
"""Examples of docstrings that take more than 1.5 s of a processor.

By day what they name is looked for (tests/docs/test_code_blocks.py), and what they call
has tests of its own.
"""
LEFT = pytest.StashKey[Counter[str]]()
"""Numbers of tests left to the night, by file."""
memory = 0
"""Resident memory of this process after programs were last dropped."""
quick_test: str | None = None
"""The quick test that is running."""


@pytest.fixture(autouse=True)
def unchanged_settings() -> Iterator[None]:
    before = [getattr(jax.config, name) for name in SETTINGS]
    yield
    assert before == [getattr(jax.config, name) for name in SETTINGS], (
        "the test changed settings of JAX for all that follow in its process"
    )


@pytest.fixture(autouse=True)
def strict_numbers(
    request: pytest.FixtureRequest, unchanged_settings: None
) -> Iterator[None]:
    if request.node.get_closest_marker("single_precision"):
        yield
        return
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


@pytest.fixture(autouse=True, scope="module")
def little_memory() -> Iterator[None]:
    # A compiled program holds memory maps, and Linux grants a process 65,530 of them.
    # Programs are kept as long as they fit: tests of several modules share them.
    global memory
    yield
    this = Path("/proc/self")
    if not this.exists():
        return
    maps = (this / "maps").read_bytes().count(b"\n")
    if maps > MOST_MAPS or _resident(this) > memory + MOST_BYTES:
        jax.clear_caches()
        memory = _resident(this)


def _resident(process: Path) -> int:
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # A tier does not import what only other tiers need: nvflare and what comes with it
    # take 5 s of a processor in every worker.
    left_out = {"quick": NOT_QUICK, "not nightly": ("nightly",)}
    marker = None
    if collection_path.suffix == ".py":
        marker = ALL_MARKED.search(collection_path.read_text())
    if marker is None or marker[1] not in left_out.get(config.option.markexpr, ()):
        return None
    if marker[1] == "nightly":
        name = str(collection_path.relative_to(config.rootpath))
        tests = re.findall(r"^def test_", collection_path.read_text(), re.M)
        config.stash.setdefault(LEFT, Counter())[name] = len(tests)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    left = config.stash.setdefault(LEFT, Counter())
    for item in items:
        if item.location[0].startswith(PROCESSES_IN_DOCTESTS):
            item.add_marker(pytest.mark.process)
        if item.name.removeprefix("fedbilevel.") in NIGHTLY_DOCTESTS:
            item.add_marker(pytest.mark.nightly)
        if not any(item.get_closest_marker(name) for name in NOT_QUICK):
            item.add_marker(pytest.mark.quick)
        if item.get_closest_marker("nightly"):
            left[item.location[0]] += 1
    if config.option.markexpr != "not nightly":
        left.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global quick_test
    quick_test = item.nodeid if item.get_closest_marker("quick") else None
    try:
        return (yield)
    finally:
        quick_test = None


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if quick_test is not None and event in STARTS_A_PROCESS:
        raise RuntimeError(
            f"{quick_test} starts a process ({event}); mark it `process`, or call the "
            "command in this process."
        )


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Workers of pytest-xdist collect, and their controller prints.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = dict(session.config.stash.get(LEFT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    # A worker that crashed has no output; pytest-xdist names the test that it ran.
    if error is None:
        node.config.stash[LEFT] = Counter(node.workeroutput.get("left", {}))


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    left = config.stash.get(LEFT, Counter())
    if left:
        terminalreporter.section(f"{left.total()} tests left to make nightly")
        for file, count in sorted(left.items()):
            terminalreporter.line(f"{count:4d}  {file}")
