"""Pictures, the report, comparisons, plans and diagnoses of runs."""

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedbilevel import LocalBSGM, NeumannSeries, plan_from
from fedbilevel.commands.plan import planned_experiment
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.theory.plans import plan_for_accuracy
from tests.algorithms.table import by_day
from tests.commands.typing_in import ENVIRONMENT, QUICK, as_for_users, fedbilevel

pytestmark = pytest.mark.process

PROBLEMS = {
    "regularisation": ["penalties"],
    "cleaning": ["trusted", "trust"],
    "loss_tuning": ["classes"],
    "representation": ["units"],
    "cleaning_network": ["upper"],
    "quadratic_task": ["upper"],
}


class Page(HTMLParser):
    """Elements of a page, and addresses that it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            # Links within the page fetch nothing.
            if name in ("src", "href", "xlink:href") and not value.startswith(
                ("#", "data:")
            ):
                self.fetched.append(value)


@pytest.mark.nightly
@pytest.mark.parametrize("problem", by_day(PROBLEMS, "cleaning"))
def test_a_ready_made_problem_runs_and_is_drawn_on_a_page_of_its_own(problem, tmp_path):
    fedbilevel(tmp_path, f"new first --ready {problem}")
    small = "--rounds 2 --evaluation.every 1"
    if problem != "quadratic_task":
        small += " --data.train-size 200 --data.validation-size 100"
    if problem == "regularisation":
        small += " --algorithm.hypergradient.terms 1"  # quicker to compile
    # In these problems the loss first rises from that of y = 0: the code is 3.
    code = 3 if problem in ("loss_tuning", "quadratic_task") else 0
    fedbilevel(tmp_path, f"run first.toml {small}", code=code)
    result = fedbilevel(tmp_path, "plot runs/first --json")
    content = json.loads(result.stdout)
    names = [Path(file).stem for file in content["pictures"]]
    assert names == ["history", *PROBLEMS[problem]]
    for file in content["pictures"]:
        assert (tmp_path / file).read_text().startswith("<?xml")
    page = Page()
    text = (tmp_path / content["report"]).read_text()
    page.feed(text)
    assert page.tags.count("svg") == len(names)
    assert page.fetched == []
    assert not re.search(r"url\((?!#)|@import", text)
    assert "script" not in page.tags


def test_experiments_are_compared_over_seeds_and_run_only_once(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    (tmp_path / "rival.toml").write_text(QUICK.replace("0.1", "0.3"))
    arguments = (
        "compare quick.toml rival.toml --seeds 2 --jobs 1 --metric accuracy --json"
    )
    first = fedbilevel(tmp_path, arguments)
    content = json.loads(first.stdout)
    assert {label: len(seeds) for label, seeds in content.items()} == {
        "quick (FedBiO)": 2,
        "rival (FedBiO)": 2,
    }
    assert "Running quick.toml with seed 1" in first.stderr
    assert (tmp_path / "comparison.svg").exists()
    second = fedbilevel(tmp_path, arguments)
    assert second.stderr == ""
    assert json.loads(second.stdout) == content
    table = fedbilevel(tmp_path, "compare quick.toml rival.toml --seeds 2").stdout
    assert "±" in table
    assert table.splitlines()[0].split()[:3] == ["run", "seeds", "rounds"]


@pytest.mark.nightly
def test_a_plan_is_that_of_the_corollaries_and_can_be_run(tmp_path):
    (tmp_path / "anchor.toml").write_text(
        QUICK.replace("FedBiO", "LocalBSGM")
        .replace("rounds = 12", "rounds = 4")
        .replace("batch_size = 4", "batch_size = 4\nlocal_steps = 4")
        + '[algorithm.hypergradient]\nname = "NeumannSeries"\nterms = 3\nscale = 0.2\n'
    )
    fedbilevel(
        tmp_path, "run anchor.toml --evaluation.metrics hypergradient lower_error"
    )
    # ε is the mean over records of both distances from stationarity.
    rows = (tmp_path / "runs/anchor/metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(row)["metrics"] for row in rows]
    reached = sum(f["hypergradient"] + f["lower_error"] for f in metrics) / len(rows)
    accuracy = reached / 2
    result = fedbilevel(
        tmp_path,
        f"plan runs/anchor --devices 8 --accuracy {accuracy!r} --out more.toml --json",
    )
    output = json.loads(result.stdout)
    algorithm = LocalBSGM(
        learning_rate=0.1,
        hypergradient=NeumannSeries(terms=3, scale=0.2),
        local_steps=4,
        batch_size=4,
    )
    anchor = plan_from(algorithm, devices=4, steps=16, accuracy=reached)
    plan = plan_for_accuracy(anchor, devices=8, accuracy=accuracy, contraction=0.9)
    assert output["predicted"]["rounds"] == plan.rounds
    planned = read_experiment(tmp_path / "more.toml")
    assert planned.partition.devices == 8
    assert planned.rounds == plan.rounds
    *_, last, _ = fedbilevel(tmp_path, "run more.toml --json").stdout.splitlines()
    spent = json.loads(last)
    # The costs of the run equal the predicted costs.
    assert spent["bytes_up"] + spent["bytes_down"] == output["predicted"]["bytes"]
    samples = spent["upper_samples"] + spent["lower_samples"]
    assert samples == output["predicted"]["samples"] == plan.samples


@pytest.mark.nightly
def test_devices_that_differ_are_found_out(tmp_path):
    alike = QUICK.replace("train_size = 64", "train_size = 400")
    (tmp_path / "alike.toml").write_text(alike)
    # With 100 examples a device the distance is 0.27, as dense solves confirm.
    result = fedbilevel(tmp_path, "diagnose alike.toml --tolerance 0.5 --json")
    assert json.loads(result.stdout)["verdict"] == "HOMOGENEOUS"
    apart = alike.replace("devices = 4", "devices = 4\nconcentration = 0.05")
    (tmp_path / "apart.toml").write_text(apart)
    result = fedbilevel(tmp_path, "diagnose apart.toml --tolerance 0.5 --json")
    assert json.loads(result.stdout)["verdict"] == "HETEROGENEOUS"


@pytest.mark.nightly
def test_pytest_finds_the_tests_of_a_scaffold_and_they_pass(tmp_path):
    fedbilevel(tmp_path, "new ridge")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        check=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert "5 passed" in result.stdout


def test_a_scaffold_runs_and_its_tests_pass(tmp_path, monkeypatch):
    fedbilevel(tmp_path, "new ridge")
    fedbilevel(tmp_path, "run ridge.toml")
    monkeypatch.syspath_prepend(tmp_path)
    with as_for_users():
        files = [tmp_path / "test_ridge.py", tmp_path / "test_ridge_site.py"]
        modules = [runpy.run_path(str(file)) for file in files]
        tests = [
            one
            for module in modules
            for name, one in module.items()
            if name.startswith("test_")
        ]
        assert len(tests) == 5
        for test in tests:
            test()
    del sys.modules["ridge"]
    content = json.loads(fedbilevel(tmp_path, "plot runs/ridge --json").stdout)
    assert [Path(file).stem for file in content["pictures"]] == ["history", "upper"]


def test_the_doctor_tells_what_is_there(tmp_path):
    content = json.loads(fedbilevel(tmp_path, "doctor --json").stdout)
    assert content["packages"]["jax"]
    assert content["data"]["digits"] == "scikit-learn"
    output = fedbilevel(tmp_path, "doctor").stdout
    assert "JAX devices" in output
    assert "Data sets" in output


@pytest.mark.nightly
def test_seeds_are_compared_after_the_same_rounds(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    fedbilevel(tmp_path, "compare quick.toml --seeds 2 --jobs 1")
    records = tmp_path / "runs" / "quick-seed-1" / "metrics.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:-1]))  # as if it had stopped after 8 rounds
    result = fedbilevel(tmp_path, "compare runs/quick runs/quick-seed-1 --json")
    assert "runs/quick-seed-1 stopped after 8 of 12 rounds" in result.stderr
    (seeds,) = json.loads(result.stdout).values()
    assert [one["rounds"] for one in seeds] == [8, 8]


def test_a_report_names_no_tracker(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    fedbilevel(tmp_path, "run quick.toml")
    file = tmp_path / "runs" / "quick" / "experiment.toml"
    file.write_text(file.read_text() + 'mlflow = "http://user:secret@host"\n')
    assert read_experiment(file).tracking.mlflow is not None
    fedbilevel(tmp_path, "plot runs/quick")
    assert "secret" not in (tmp_path / "runs" / "quick" / "report.html").read_text()


def test_a_run_that_diverged_is_still_drawn(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    fedbilevel(tmp_path, "run quick.toml")
    file = tmp_path / "runs" / "quick" / "solution.npz"
    np.savez(file, x=np.full(64, np.nan), y=np.zeros((10, 64)))
    result = fedbilevel(tmp_path, "plot runs/quick --json")
    assert "diverged" in result.stderr
    assert len(json.loads(result.stdout)["pictures"]) == 1


@pytest.mark.parametrize("participants", [None, 2])
def test_a_planned_experiment_has_the_plans_devices(participants):
    algorithm = LocalBSGM(
        learning_rate=0.1,
        hypergradient=NeumannSeries(terms=3, scale=0.2),
        local_steps=16,
    )
    experiment = Experiment(algorithm, participants=participants)
    devices = experiment.participants or 8
    anchor = plan_from(algorithm, devices=devices, steps=160, accuracy=1.0)
    plan = plan_for_accuracy(anchor, devices=2 * devices, accuracy=1.0, contraction=0.9)
    created = planned_experiment(experiment, algorithm, plan, enrolled=8)
    assert (created.participants or created.partition.devices) == 2 * devices
    assert created.partition.devices >= 2 * devices
    custom = replace(
        experiment, problem=CustomProblem(Path("own.py")), participants=None
    )
    with pytest.raises(ValueError, match=r"the problem has 3\. Change the number"):
        planned_experiment(custom, algorithm, plan, enrolled=3)
