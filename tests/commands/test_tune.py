"""`fedbilevel tune`: killed, resumed and refused searches, and their files.

On small files; `test_tune_readme` tunes the README's at night.
"""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbilevel import FedBiO
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.schema import Auto
from tests.commands.typing_in import ENVIRONMENT, QUICK, fedbilevel
from tests.waiting import HANG, until

pytestmark = pytest.mark.process

SEARCH = "tune quick.toml --trials 9 --seeds 2"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with quick.toml and a finished search."""
    directory = tmp_path_factory.mktemp("searched")
    (directory / "quick.toml").write_text(QUICK)
    result = fedbilevel(directory, SEARCH)
    (directory / "said.txt").write_text(result.stdout + result.stderr)
    return directory


def scores_in(file: Path) -> int:
    return file.read_text().count('"scores"') if file.exists() else 0


def until_scored(begun: subprocess.Popen[bytes], file: Path, known: int) -> None:
    """Wait for a new score without a pause: a batch is short."""
    until(
        lambda: scores_in(file) > known or begun.poll() is not None,
        pause=0.0,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_search_that_was_killed_ends_as_one_that_was_not(times, searched, tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    tuned = tmp_path / "runs" / "quick-tuned"
    known = 0
    for _ in range(times):
        with subprocess.Popen(
            [sys.executable, "-m", "fedbilevel", *SEARCH.split(), "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        ) as begun:
            until_scored(begun, tuned / "study.log", known)
            begun.send_signal(signal.SIGKILL)
            begun.communicate(timeout=HANG)
        assert begun.returncode == -signal.SIGKILL
        assert not (tuned / "best.toml").exists()
        known = scores_in(tuned / "study.log")
    fedbilevel(tmp_path, SEARCH)
    for file in ("best.toml", "trials.csv"):
        whole = searched / "runs" / "quick-tuned" / file
        assert (tuned / file).read_text() == whole.read_text(), file


def test_the_first_ctrl_c_ends_a_batch_and_prints_how_to_resume(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    with subprocess.Popen(
        [sys.executable, "-m", "fedbilevel", *SEARCH.split()],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as begun:
        assert begun.stderr is not None
        assert "Tuning Regularisation by FedBiO" in begun.stderr.readline()
        begun.send_signal(signal.SIGINT)  # while it loads and compiles
        output = begun.stderr.read()
    assert begun.returncode == 130
    assert "Stopping after this batch" in output
    assert "The same command resumes the search in runs/quick-tuned" in output
    assert "Traceback" not in output
    assert scores_in(tmp_path / "runs" / "quick-tuned" / "study.log") > 0


@pytest.mark.nightly
def test_the_best_file_gives_the_number_that_was_promised(searched):
    tuned = searched / "runs" / "quick-tuned"
    again = json.loads(fedbilevel(searched, f"{SEARCH} --json").stdout)
    assert again["before"] > again["median"]
    assert again["trials"] == 9
    result = fedbilevel(searched, "run runs/quick-tuned/best.toml --json")
    *_, last, _ = map(json.loads, result.stdout.splitlines())
    assert last["rounds"] == 12
    assert last["metrics"]["loss"] == pytest.approx(again["values"][0], rel=1e-5)
    assert (tuned / "best" / "metrics.jsonl").exists()
    experiment = read_experiment(searched / "quick.toml")
    best = read_experiment(tuned / "best.toml")
    assert isinstance(best.algorithm, FedBiO)
    assert isinstance(experiment.algorithm, FedBiO)
    assert best.algorithm.batch_size == experiment.algorithm.batch_size == 4
    assert best.algorithm.lower_rate == pytest.approx(again["settings"]["lower_rate"])


def test_progress_and_summary_say_what_was_found(searched):
    output = (searched / "said.txt").read_text()
    # 3 generations: 3 settings for 10 rounds, and 2 of them for 12 with 2 seeds.
    assert "as many rounds as 20 full runs, for 9 settings" in output
    assert "1 of 3, 3 settings for 10 rounds" in output
    assert "the median of 2 seeds" in output
    assert (
        "To run the best settings: fedbilevel run runs/quick-tuned/best.toml" in output
    )
    with (searched / "runs" / "quick-tuned" / "trials.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [row["trial"] for row in rows] == [str(n) for n in range(9)]
    assert float(rows[0]["upper_rate"]) == 1.0
    whole = [float(row["loss"]) for row in rows if row["rounds"] == "12"]
    assert f"validation loss {min(whole):.4g} after 12 rounds" in output
    picture = (searched / "runs" / "quick-tuned" / "tuning.svg").read_text()
    assert picture.count("<svg") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rounds 14", "has a search of another experiment: rounds 12 → 14"),
        ("--metric accuracy --maximise", "contains another search: metric was loss"),
        ("--metric accuraci", "did you mean accuracy?"),
        ("--trials 0", "--trials is 0. Give at least 1"),
    ],
)
def test_another_search_in_its_place_is_refused(searched, arguments, message):
    before = (searched / "runs" / "quick-tuned" / "best.toml").read_text()
    result = fedbilevel(searched, f"{SEARCH} {arguments}", code=2)
    assert message in result.stderr
    assert (searched / "runs" / "quick-tuned" / "best.toml").read_text() == before


@pytest.mark.nightly  # by day, `tests.tuning.test_space` looks at its space
def test_auto_is_tuned_by_its_upper_rate_alone(tmp_path):
    (tmp_path / "auto.toml").write_text(
        'algorithm = "auto"\nrounds = 12\n'
        + QUICK.split("[algorithm]")[0].split("\n", 2)[2]
    )
    arguments = (
        "tune auto.toml --trials 3 --seeds 1 --metric accuracy --maximise --json"
    )
    content = json.loads(fedbilevel(tmp_path, arguments).stdout)
    assert list(content["settings"]) == ["upper_rate"]
    assert content["median"] >= content["before"] > 0
    best = read_experiment(tmp_path / "runs" / "auto-tuned" / "best.toml")
    assert isinstance(best.algorithm, Auto)
    assert best.algorithm.upper_rate == pytest.approx(content["settings"]["upper_rate"])


@pytest.mark.nightly
def test_a_file_whose_every_setting_diverges_is_answered_plainly(tmp_path):
    problem = tmp_path / "steep.py"
    problem.write_text(STEEP)
    (tmp_path / "steep.toml").write_text(
        'rounds = 3\n[problem]\nname = "CustomProblem"\nfile = "steep.py"\n'
        '[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
    )
    result = fedbilevel(tmp_path, "tune steep.toml --trials 3 --seeds 1", code=2)
    assert "All 3 settings diverged" in result.stderr
    assert "DebugSimulation" in result.stderr


@pytest.mark.nightly
def test_a_search_of_another_custom_problem_is_refused(tmp_path):
    problem = tmp_path / "mild.py"
    problem.write_text(STEEP.replace("jnp.inf", "0.0"))
    (tmp_path / "mild.toml").write_text(
        'rounds = 3\n[problem]\nname = "CustomProblem"\nfile = "mild.py"\n'
        '[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
    )
    fedbilevel(tmp_path, "tune mild.toml --trials 1 --seeds 1")
    problem.write_text(f"{problem.read_text()}\nOTHER = 1\n")
    result = fedbilevel(tmp_path, "tune mild.toml --trials 1 --seeds 1", code=2)
    assert "contains another search: problem_file was" in result.stderr


STEEP = '''"""Finite at the start and nowhere else."""
import jax.numpy as jnp
import numpy as np
from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Task


def upper_loss(x, y, batch):
    return jnp.mean((y - 1) ** 2 + 0 * batch)


def lower_loss(x, y, batch):
    far = jnp.where(jnp.abs(y - 1) > 0, jnp.inf, 0.0)
    return jnp.mean(batch * (y - x) ** 2) + far


def task():
    held = [LocalExamples(np.ones(2), np.ones(2)) for _ in range(2)]
    problem = BilevelProblem(upper_loss, lower_loss)
    return Task(problem, InMemoryDevices(held), jnp.array(3.0), jnp.array(1.0), {})
'''
