"""Additions to a copy of the library: they work, in as many files as the guides state.

The skeletons of `docs/extending` are written where the guides say. The files that this
changes are counted, and one process uses all additions: from Python, from an experiment
file and on the command line.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT
from tests.waiting import HANG
from tools.pages import blocks

GUIDES = ROOT / "docs" / "extending"


class Line(NamedTuple):
    """A line to write after the first one that contains a text."""

    file: str
    after: str
    text: str


STUB = "__init__.pyi"
PLACE = "transforms.keep_largest"
KEYS = "experiments/schema/transforms.py"
ADDITIONS: dict[str, tuple[str, Sequence[Line]]] = {
    "algorithm": (
        "algorithms/plain.py",
        [
            Line(STUB, "algorithms.f2sa", "from .algorithms.plain import Plain"),
            Line(STUB, '"F2SA",', '    "Plain",'),
        ],
    ),
    "problem": (
        "problems/one_penalty.py",
        [
            Line(
                "problems/__init__.py",
                "import Model, Task, TaskMetric",  # which the skeleton imports
                "from fedbilevel.problems.one_penalty import OnePenalty",
            ),
            Line("problems/__init__.py", '"NoisyLabels",', '    "OnePenalty",'),
        ],
    ),
    "transform": (
        "transforms/keep_largest.py",
        [
            Line(STUB, "import Quantise", f"from .{PLACE} import KeepLargest"),
            Line(STUB, '"Quantise",', '    "KeepLargest",'),
            Line(KEYS, "    bits: Bits", "    keep_largest: Count | None = None"),
            Line(KEYS, "        bits: 16", "        keep_largest: number of entries."),
            Line(KEYS, '"bits": "code",', '            "keep_largest": "code",'),
            Line(
                KEYS,
                "code: Any = None",
                "        if self.keep_largest is not None:\n"
                f"            from fedbilevel.{PLACE} import KeepLargest\n"
                "            code = KeepLargest(self.keep_largest)",
            ),
        ],
    ),
    "metric": (
        "metrics/sharpness.py",
        [
            Line(
                "metrics/registry.py",
                "metrics.stationarity import",
                "from fedbilevel.metrics.sharpness import SHARPNESS",
            ),
            Line("metrics/registry.py", "BUILT_IN = (", "    SHARPNESS,"),
        ],
    ),
    "transport": ("federation/threads.py", []),
    "engine": (
        "engines/timed.py",
        [
            Line(STUB, "engines.debug", "from .engines.timed import Timed"),
            Line(STUB, '"DebugSimulation",', '    "Timed",'),
            Line(
                "experiments/schema/registry.py",
                "engines.simulation import",
                "from fedbilevel.engines.timed import Timed",
            ),
            Line(
                "experiments/schema/registry.py",
                "built_in: list[type] = [",
                "            Timed,",
            ),
        ],
    ),
}
"""The file of each guide's skeleton, and lines in other files."""

USES = """
import runpy
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedbilevel as fb
from fedbilevel.__main__ import main
from fedbilevel.experiments import read_experiment
from fedbilevel.tracking import read_records

assert fb.__file__.startswith(sys.argv[1])
problem = fb.BilevelProblem(
    lambda x, y, batch: jnp.mean((x - batch) ** 2),
    lambda x, y, batch: jnp.mean((y - 2 * batch) ** 2),
)
rows = np.ones((4, 3), np.float32)
devices = fb.InMemoryDevices.sharing(fb.LocalExamples(rows, rows), 2)
start = np.zeros(3, np.float32), np.zeros(3, np.float32)
engine = fb.Timed()
algorithm = fb.with_transforms(fb.Plain(0.1), fb.KeepLargest(1))
*_, last = fb.run(problem, algorithm, devices, *start, rounds=2, engine=engine)
assert len(engine.seconds) == 2 and 0 < np.count_nonzero(last.y) < 3

(Path("threads.py")).write_text("from fedbilevel.federation.threads import Threads")
sys.path.insert(0, ".")
runpy.run_path("try_threads.py")

experiment = read_experiment(Path("named.toml"))
types = experiment.algorithm, experiment.problem, experiment.engine
assert [type(one).__name__ for one in types] == ["Plain", "OnePenalty", "Timed"]
assert main(["run", "named.toml", "--json"]) in (0, 3)
types = "algorithm:Plain", "problem:OnePenalty", "engine:Timed"
options = "--algorithm.learning-rate 0.1 --transforms.keep-largest 2 "
options += "--evaluation.metrics sharpness --directory runs/options --json"
assert main(["run", "plain.toml", *types, *options.split()]) in (0, 3)
ends = [list(read_records(Path("runs") / name))[-1] for name in ("named", "options")]
assert ends[0].metrics == ends[1].metrics and ends[0].metrics["sharpness"] > 0
"""
SHARED = "rounds = 2\ndata.train_size = 60\ndata.validation_size = 30\n"
SHARED += "partition.devices = 3\n"
NAMED = """algorithm = { name = "Plain", learning_rate = 0.1 }
problem.name = "OnePenalty"
engine.name = "Timed"
transforms.keep_largest = 2
evaluation.metrics = ["sharpness"]
"""


def skeleton(name: str, file: str) -> str:
    texts = {b.file: b.text for b in blocks((GUIDES / f"{name}.md").read_text())}
    return texts[file]


def add(package: Path, name: str) -> None:
    file, lines = ADDITIONS[name]
    assert not (package / file).exists()
    (package / file).write_text(skeleton(name, Path(file).name))
    for line in lines:
        target = package / line.file
        before, anchor, rest = target.read_text().partition(line.after)
        assert anchor, line
        if anchor.endswith(("(", "[")):  # of a list, whose first entry follows
            text = f"{before}{anchor}\n{line.text}\n{rest}"
        else:
            end, _, rest = rest.partition("\n")
            text = f"{before}{anchor}{end}\n{line.text}\n{rest}"
        target.write_text(text)


def contents(package: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in package.rglob("*.py*")}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A copy of the library with all additions, and the number of files of each."""
    package = tmp_path_factory.mktemp("library") / "fedbilevel"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "fedbilevel", package, ignore=ignored)
    counts, before = {}, contents(package)
    for name in ADDITIONS:
        add(package, name)
        after = contents(package)
        counts[name] = sum(before.get(file) != text for file, text in after.items())
        before = after
    return package.parent, counts


def test_every_guide_is_tried():
    assert {f"{name}.md" for name in (*ADDITIONS, "index")} == {
        guide.name for guide in GUIDES.glob("*.md")
    }


def test_the_guides_state_the_number_of_files(library):
    row = re.compile(r"^\| \[.*\]\((\w+)\.md\) \| 1 \| (\d+) \|", re.MULTILINE)
    stated = dict(row.findall((GUIDES / "index.md").read_text()))
    assert {name: int(number) for name, number in stated.items()} == library[1]


@pytest.mark.process
def test_additions_work_from_python_from_a_file_and_on_the_command_line(
    library, tmp_path
):
    (tmp_path / "named.toml").write_text(SHARED + NAMED)
    plain = 'algorithm = { name = "FedBiO", learning_rate = 0.3 }\n'
    (tmp_path / "plain.toml").write_text(SHARED + plain)
    (tmp_path / "try_threads.py").write_text(skeleton("transport", "try_threads.py"))
    result = subprocess.run(
        [sys.executable, "-c", USES, str(library[0])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(library[0])},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[0])
