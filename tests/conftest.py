"""Precision, tiers and compiled programs of the test suite.

Tests of mathematics run in x64 with strict dtype promotion and no rank promotion.
A test belongs to the quick tier unless it, or its module, is marked `process`, `slow`
or `nightly`; see CONTRIBUTING.md, "Tests".
"""

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before any import of the package, whose functions it wraps.
from tests import checking
from tests.compiling import for_devices
from tests.tier_costs import BUDGETS, TierCosts

# The sharded engine has 4 devices. Processes share compiled programs by a cache.
os.environ.setdefault("XLA_FLAGS", for_devices(4))
# Loading a cached program logs much about the machine, into pipes that no test reads.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tracing and lowering take 5 % less time if programs do not note their source lines.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Threads of PyTorch in two workers on two cores would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# The files that tests execute must not count as allowed by the user.
os.environ["XDG_STATE_HOME"] = str(CACHE.parent / "state")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

MOST_MAPS, MOST_BYTES = 30_000, 2 * 10**9
"""Limits of memory maps and memory growth of a process; above, it drops programs."""
SETTINGS = "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"
"""Settings of JAX for the whole process, which every test must restore."""
NOT_QUICK = "process", "slow", "nightly"
"""Markers of tests that the quick tier omits."""
STARTS_A_PROCESS = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
}
"""Audit events of the interpreter that a quick test must not raise."""
ALL_MARKED = re.compile(
    rf"^pytestmark = .*?pytest\.mark\.({'|'.join(NOT_QUICK)})\b", re.M
)
"""The line that marks all tests of a module, alone or in a list."""
NIGHTLY_DOCTESTS = {
    "metrics.device_adjoint.solve_adjoint",
    "engines.final_points.final_points",
    "engines.query_session.QuerySession",
    "engines.mean.merge_across",
    "engines.run.Run",
    "engines.sweep.sweep",
    "federation.server.Federation",
    "flare.rehearsals.rehearsal",
    "metrics.diagnosis.diagnose",
    "metrics.estimation.estimate_assumptions",
    "metrics.instability.find_instabilities",
    "metrics.suggestion.batch_curvature",
    "problems.task.Task",
    "tracking.delivery.track",
    "transforms.example_noise.ExampleNoise",
    "tuning.halving.work_of",
    "tuning.tuner.tune",
}
"""Doctests that take more than 1.5 s of CPU time.

`make check` only checks their imports (tests/docs/test_code_blocks.py); the functions
that they call have separate tests.
"""
OMITTED = pytest.StashKey[Counter[str]]()
"""Numbers of tests that only `make nightly` runs, by file."""
memory = 0
"""Resident memory of this process after programs were last dropped."""
quick_test: str | None = None
"""The quick test that is running."""


@pytest.fixture(autouse=True)
def first_calls() -> None:
    checking.calls.clear()


@pytest.fixture(autouse=True)
def unchanged_settings() -> Iterator[None]:
    before = [getattr(jax.config, name) for name in SETTINGS]
    yield
    assert before == [getattr(jax.config, name) for name in SETTINGS], (
        "the test changed settings of JAX for later tests; restore them"
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
def memory_of_modules() -> Iterator[None]:
    yield
    _bound_memory()


@pytest.fixture(autouse=True)
def memory_of_nightly_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    # A module of hundreds of tests at full size would reach the limit.
    yield
    if request.node.get_closest_marker("nightly"):
        _bound_memory()


def _bound_memory() -> None:
    # A compiled program has memory maps, and Linux limits a process to 65,530 of them.
    # Programs are kept below that limit, since tests of several modules share them.
    global memory
    process = Path("/proc/self")
    if not process.exists():
        return
    maps = (process / "maps").read_bytes().count(b"\n")
    if maps > MOST_MAPS or _resident(process) > memory + MOST_BYTES:
        jax.clear_caches()
        memory = _resident(process)


def _resident(process: Path) -> int:
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pytest_configure(config: pytest.Config) -> None:
    tier = config.option.markexpr
    if tier in BUDGETS and not config.option.collectonly:
        config.pluginmanager.register(TierCosts(tier), "tier-costs")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    # Collected objects live until the end. Searching them for garbage takes 2 of 20 s
    # in every worker during collection, and half a second at each later search.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # A tier imports neither modules of other tiers nor modules without tests: importing
    # nvflare takes 5 s of CPU time in every worker, and PyTorch 3 s.
    if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None
    text = collection_path.read_text()
    if ">>>" not in text and not collection_path.name.startswith("test_"):
        return True
    omitted = {"quick": NOT_QUICK, "not nightly": ("nightly",)}
    omitted_here = omitted.get(config.option.markexpr, ())
    name = str(collection_path.relative_to(config.rootpath))
    if "slow" in omitted_here and not name.startswith("tests/"):
        return True
    marker = ALL_MARKED.search(text)
    if marker is None or marker[1] not in omitted_here:
        return None
    if marker[1] == "nightly":
        tests = re.findall(r"^def test_", text, re.M)
        config.stash.setdefault(OMITTED, Counter())[name] = len(tests)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    left = config.stash.setdefault(OMITTED, Counter())
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.slow)
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
            f"{quick_test} starts a process ({event}). Mark it `process`, or call the "
            "command in this process."
        )


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Workers of pytest-xdist collect, and their controller prints.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = dict(session.config.stash.get(OMITTED, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    # A worker that crashed has no output; pytest-xdist names the test that it ran.
    if error is None:
        node.config.stash[OMITTED] = Counter(node.workeroutput.get("left", {}))


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    left = config.stash.get(OMITTED, Counter())
    if left:
        terminalreporter.section(f"{left.total()} tests left to make nightly")
        for file, count in sorted(left.items()):
            terminalreporter.line(f"{count:4d}  {file}")
