"""The untuned baseline of a run: its values, its training and its display."""

import json
import re
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbilevel import UniformSample, run
from fedbilevel.__main__ import main
from fedbilevel.commands import baseline as follow_baseline_module
from fedbilevel.engines import block
from fedbilevel.engines.inspection import NoUploadsError
from fedbilevel.experiments.baseline import read_baseline, train_baseline
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run import prepare_run, run_experiment
from fedbilevel.tracking.records import read_records

pytestmark = [pytest.mark.single_precision, pytest.mark.slow]

PROBLEM = '''
"""Scale a mean, so that it comes out at 1."""
import jax.numpy as jnp
import numpy as np
from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Task


def upper_loss(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def lower_loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


def task():
    ones = np.ones(2, np.float32)
    held = [LocalExamples(ones, k * ones) for k in (1, 2, 3)]
    metrics = {"scale": lambda x, y: x}
    start = jnp.float32(0.1)
    problem = BilevelProblem(upper_loss, lower_loss)
    return Task(problem, InMemoryDevices(held), start, 0 * start, metrics)
'''
FILE = """
rounds = 6
seed = 3
participants = 2
weight_by_size = true
problem = {name = "CustomProblem", file = "scale.py"}
[algorithm]
name = "FedBiO"
learning_rate = 0.1
upper_rate = 0.3
local_steps = 2
[evaluation]
every = 3
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scale.py").write_text(PROBLEM)
    (tmp_path / "scale.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_baseline_is_the_run_with_x_fixed_and_no_other_program(desk):
    experiment = read_experiment(desk / "scale.toml")
    work = prepare_run(experiment)
    *_, last = run_experiment(experiment, desk / "run", False, lambda experiment: work)
    programs: Any = block._rounds
    before = programs._cache_size()
    *_, step = train_baseline(experiment, work, desk / "run")
    assert programs._cache_size() == before
    *_, by_hand = run(
        work.problem,
        replace(experiment.inner_algorithm, upper_rate=0.0),
        work.devices,
        work.x,
        work.y,
        rounds=6,
        seed=3,
        participation=UniformSample(2),
        weights=work.weights,
    )
    assert float(step.round.x) == float(work.x) != float(last.round.x)
    np.testing.assert_array_equal(step.round.y, by_hand.y)
    record = read_baseline(desk / "run")
    assert record is not None
    assert record.costs == by_hand.costs == last.round.costs
    assert record.metrics == work.measure(by_hand.x, by_hand.y)


def test_run_keeps_and_shows_it_beside_the_start_and_the_end(desk, capsys):
    assert main(["run", "scale.toml"]) == 0
    first, *_, last = read_records(Path("runs/scale"))
    record = read_baseline(Path("runs/scale"))
    assert record is not None
    assert record.metrics["scale"] == first.metrics["scale"] < last.metrics["scale"]
    assert last.metrics["loss"] < record.metrics["loss"] < first.metrics["loss"]
    shown = capsys.readouterr()
    assert shown.err.count("round 6 of 6") == 2
    assert "scale 0.1 → " in shown.out
    assert "(without tuning 0.1)" in shown.out
    assert main(["plot", "runs/scale"]) == 0
    page = Path("runs/scale/report.html").read_text()
    heads = "<td>at the start</td><td>without tuning</td><td>at the end</td>"
    assert heads in page
    losses = (f"{one.metrics['loss']:.4g}" for one in (first, record, last))
    row = "<td>{}</td><td>{}</td><td><strong>{}</strong></td>".format(*losses)
    assert row in page
    assert "Dashed lines" in page


@pytest.mark.parametrize("text", ["", "null", "[]", "7", '{"rounds": 6}'])
def test_a_damaged_file_is_no_baseline_and_a_damaged_line_no_record(tmp_path, text):
    for name in ("baseline.json", "metrics.jsonl"):
        (tmp_path / name).write_text(text)
    assert read_baseline(tmp_path) is None
    assert list(read_records(tmp_path)) == []


def test_more_rounds_make_another_baseline_and_a_missing_one_is_made(desk, capsys):
    assert main(["run", "scale.toml", "--json"]) == 0
    *rows, baseline = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["rounds"] for row in rows] == [3, 6]
    file = Path("runs/scale/baseline.json")
    assert baseline == {"baseline": json.loads(file.read_text())}
    # A damaged baseline, or one of another number of rounds, is ignored.
    whole = file.read_text()
    for other in (whole[:9], whole.replace('"rounds": 6', '"rounds": 5')):
        file.write_text(other)
        assert read_baseline(Path("runs/scale")) is None
    assert main(["resume", "runs/scale"]) == 0
    assert json.loads(file.read_text()) == baseline["baseline"] | {
        "seconds": json.loads(file.read_text())["seconds"]
    }
    assert main(["resume", "runs/scale", "--rounds", "8"]) == 0
    assert json.loads(file.read_text())["rounds"] == 8
    capsys.readouterr()
    assert main(["resume", "runs/scale"]) == 0
    assert "is finished" in capsys.readouterr().err


def test_an_interruption_leaves_the_run_and_names_the_command_for_its_baseline(
    desk, capsys, monkeypatch
):
    def interrupted(*arguments):
        with closing(train_baseline(*arguments)) as steps:
            yield next(steps)
            signal.raise_signal(signal.SIGINT)
            yield from steps

    with monkeypatch.context() as patched:
        patched.setattr(follow_baseline_module, "train_baseline", interrupted)
        assert main(["run", "scale.toml"]) == 0
    shown = capsys.readouterr()
    # The current call ends first: one or two rounds, depending on the machine.
    assert re.search("stopped after [23] of 6 rounds", shown.err)
    assert "fedbilevel resume runs/scale" in shown.err
    assert "After 6 rounds:" in shown.out
    assert "without tuning" not in shown.out
    assert Path("runs/scale/solution.npz").exists()
    assert not Path("runs/scale/baseline.json").exists()
    assert main(["resume", "runs/scale"]) == 0
    assert "without tuning" in capsys.readouterr().out


def test_an_interruption_of_a_baseline_ends_a_comparison(desk, capsys, monkeypatch):
    def interrupted(*arguments):
        with closing(train_baseline(*arguments)) as steps:
            signal.raise_signal(signal.SIGINT)
            yield from steps

    monkeypatch.setattr(follow_baseline_module, "train_baseline", interrupted)
    arguments = ["compare", "scale.toml", "--seeds", "2", "--jobs", "1"]
    assert main(arguments) == 128 + signal.SIGINT
    shown = capsys.readouterr().err
    assert "Stopped with 1 of 2 runs finished. The same command resumes" in shown
    assert "with seed 1" not in shown


def test_a_baseline_that_diverges_takes_nothing_from_the_run(desk, capsys, monkeypatch):
    def diverging(*arguments):
        raise NoUploadsError("round 1: no upload is finite.")
        yield

    monkeypatch.setattr(follow_baseline_module, "train_baseline", diverging)
    assert main(["run", "scale.toml"]) == 0
    shown = capsys.readouterr()
    assert (
        "its baseline without tuning failed: round 1: no upload is finite." in shown.err
    )
    assert "After 6 rounds:" in shown.out


@pytest.mark.nightly
@pytest.mark.parametrize(
    "option", [["--evaluation.no-baseline"], ["--algorithm.upper-rate", "0"]]
)
def test_without_a_wish_or_a_need_there_is_no_baseline(desk, capsys, option):
    assert main(["run", "scale.toml", *option]) == 0
    assert "without tuning" not in capsys.readouterr().out
    assert not Path("runs/scale/baseline.json").exists()
    assert main(["plot", "runs/scale"]) == 0
    assert "<td>without tuning</td>" not in Path("runs/scale/report.html").read_text()


def test_an_upper_rate_of_0_is_read_from_a_file_and_keeps_x(desk):
    (desk / "fixed.toml").write_text(FILE.replace("upper_rate = 0.3", "upper_rate = 0"))
    assert main(["run", "fixed.toml", "--json"]) == 0
    scales = {one.metrics["scale"] for one in read_records(Path("runs/fixed"))}
    assert scales == {float(np.float32(0.1))}
