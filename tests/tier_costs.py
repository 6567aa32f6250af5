"""Processor time of a tier of the tests, compared with the tier's budget.

Every process of a session (the workers of pytest-xdist, or pytest itself) measures the
processor time of each test and of everything else: its start, imports and collection.
A session fails if the sum exceeds the budget of its tier, or a quick test its own, and
prints the most expensive tests and files.

Machines differ in speed, and a busy core is slower than an idle one. Each process
therefore also measures a fixed piece of work between its tests, and divides its times
by the median slowdown against `REFERENCE`: budgets are ratios. Two runs of the same
tests still differ, so a session fails only above `TOLERANCE` times its budget.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import pytest

BUDGETS = {"quick": 230.0, "not nightly": 2_100.0}
"""Processor seconds of all processes of a tier, from an empty cache, by marker.

Two cores use up 230 s in 115 s, below the 120 s of `make quick`, and 2,100 s in 17.5
minutes, which leaves 2.5 of the 20 minutes of `.ci/run` for the installation and lint.
"""
TOLERANCE = 1.2
"""Factor by which the sum of a session may exceed the budget of its tier.

With the slowdown of its start and its end alone, one commit took 1,650 s in one session
and more than 1,900 s in the next, on a machine of the same kind.
"""
MOST_OF_A_QUICK_TEST = 5.0
"""Processor seconds that one test of the quick tier may take.

The first test of a file also compiles what later tests use, and imports libraries.
"""
REFERENCE = 0.0035
"""Processor seconds of `work()` on the machine that budgets are for.

The tenth percentile of 200 measurements, which other programs disturb least.
"""
PACE_SECONDS = 2.0
"""Seconds between two measurements of the fixed work."""
SOURCE = "\n".join(f"def f{n}(x):\n    return [y * {n} for y in x]" for n in range(60))


class Costs(NamedTuple):
    """Processor time of processes, in seconds of the reference machine."""

    total: float
    tests: Counter[str]

    def __add__(self, other: Any) -> "Costs":
        return Costs(self.total + other.total, self.tests + other.tests)


def work() -> float:
    """Return the processor time of a fixed piece of work that nothing caches."""
    begin = time.process_time()
    compile(SOURCE, "<work>", "exec")
    return time.process_time() - begin


def used() -> float:
    """Return the processor time of this process and of its children that ended."""
    return sum(os.times()[:4])


def excesses(costs: Costs, tier: str) -> list[str]:
    """Return a line for each budget that a session exceeded, and its largest costs."""
    lines = []
    if tier == "quick":
        lines += [
            f"{name} took {cost:.1f} s of processor time; a quick test may take "
            f"{MOST_OF_A_QUICK_TEST:g} s. Shorten it, or mark it `slow`."
            for name, cost in costs.tests.most_common()
            if cost > MOST_OF_A_QUICK_TEST
        ]
    if costs.total > TOLERANCE * BUDGETS[tier]:
        other = "nightly" if tier == "not nightly" else "slow"
        lines.append(
            f"The tier `{tier}` took {costs.total:.0f} s of processor time; its budget "
            f"is {BUDGETS[tier]:g} s. Shorten the tests below, or mark those `{other}` "
            "that find no mistake which a faster test misses."
        )
        lines += largest(costs)
    return lines


def largest(costs: Costs, count: int = 10) -> list[str]:
    """Return lines with the most expensive files and tests."""
    files: Counter[str] = Counter()
    for name, cost in costs.tests.items():
        files[name.partition("::")[0]] += cost
    other = costs.total - sum(costs.tests.values())
    return [f"{other:7.1f} s  start, imports and collection of all processes"] + [
        f"{cost:7.1f} s  {name}"
        for table in (files, costs.tests)
        for name, cost in table.most_common(count)
    ]


class TierCosts:
    """A plug-in of pytest that measures a session and fails it above its budget."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self.works = [work() for _ in range(5)]
        self.measured = time.monotonic()
        self.tests: Counter[str] = Counter()
        self.costs = Costs(0.0, Counter())
        self.lines: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begin = used()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] = used() - begin  # type: ignore[assignment]
            if time.monotonic() - self.measured > PACE_SECONDS:
                self.works.append(work())
                self.measured = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        pace = median(self.works) / REFERENCE
        # Workers of pytest-xdist are children of their controller; each reports itself.
        controller = session.config.pluginmanager.hasplugin("dsession")
        total = (time.process_time() if controller else used()) / pace
        tests = Counter({name: cost / pace for name, cost in self.tests.items()})
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = total, dict(tests)
            return
        self.costs += Costs(total, tests)
        self.lines = excesses(self.costs, self.tier)
        if self.lines and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error is None and "costs" in node.workeroutput:
            total, tests = node.workeroutput["costs"]
            self.costs += Costs(total, Counter(tests))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(
            f"{self.costs.total:.0f} of {BUDGETS[self.tier]:g} s of processor time"
        )
        for line in self.lines:
            terminalreporter.line(line)
