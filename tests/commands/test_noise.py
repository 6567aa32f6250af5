"""`fedbilevel noise FILE --epsilon ε`."""

import json

import pytest

from fedbilevel.experiments import build_task, read_experiment
from fedbilevel.experiments.outcome import BAD
from fedbilevel.privacy import (
    GaussianRelease,
    PoissonDraws,
    WithoutReplacement,
    spent,
)
from fedbilevel.tracking.records import read_records
from tests.commands.typing_in import QUICK, fedbilevel


def test_the_planned_noise_spends_at_most_epsilon(tmp_path):
    (tmp_path / "mine.toml").write_text(QUICK)
    answer = json.loads(
        fedbilevel(tmp_path, "noise mine.toml --epsilon 2 --delta 1e-6 --json").stdout
    )
    release = GaussianRelease(answer["noise"])
    assert 1.99 < spent({release: 12}, 1e-6) <= 2.0


@pytest.mark.nightly
def test_the_planned_noise_by_example_spends_at_most_epsilon(tmp_path):
    table = "[transforms]\nexample_clip = 1.0\nexample_noise = 1.0\n"
    (tmp_path / "mine.toml").write_text(QUICK + table)
    text = fedbilevel(tmp_path, "noise mine.toml --epsilon 2").stdout
    (tmp_path / "mine.toml").write_text(QUICK + text[text.index("[transforms]") :])
    # The noise that 64 examples need outweighs 12 rounds of progress.
    # Chance decides whether 12 rounds outweigh the noise that 64 examples need.
    fedbilevel(tmp_path, "run mine.toml --evaluation.every 12", code=(0, BAD))
    *_, last = read_records(tmp_path / "runs" / "mine")
    assert 1.9 < last.metrics["epsilon"] <= 2.0


@pytest.mark.slow
def test_a_sample_and_several_exchanges_in_a_round_count(tmp_path):
    text = QUICK.replace("rounds = 12", "rounds = 12\nparticipants = 2")
    series = "batch_size = 4\nseries = { terms = 2, scale = 0.1 }"
    text = text.replace("FedBiO", "FedNest").replace("batch_size = 4", series)
    (tmp_path / "mine.toml").write_text(text)
    experiment = read_experiment(tmp_path / "mine.toml")
    exchanges = len(experiment.inner_algorithm.phases(build_task(experiment).problem))
    assert exchanges > 1
    answer = json.loads(
        fedbilevel(tmp_path, "noise mine.toml --epsilon 1 --json").stdout
    )
    sample = WithoutReplacement(2, 4)
    releases = {GaussianRelease(answer["noise"] / exchanges**0.5, sample): 12}
    assert 0.99 < spent(releases, 1e-5) <= 1.0
    assert [choice["participants"] for choice in answer["choices"]] == [4, 2]


@pytest.mark.slow
def test_the_printed_table_is_read_by_run(tmp_path):
    (tmp_path / "mine.toml").write_text(QUICK)
    text = fedbilevel(tmp_path, "noise mine.toml --epsilon 2").stdout
    table = text[text.index("[transforms]") :]
    (tmp_path / "mine.toml").write_text(QUICK + table)
    run = fedbilevel(tmp_path, "run mine.toml --dry-run")
    assert "transforms.epsilon" in run.stdout


@pytest.mark.parametrize(
    ("bounds", "printed"),
    [("", "clip_quantile = 0.5\n"), ("[transforms]\nclip = 2.0", "clip = 2\n")],
)
def test_the_printed_table_has_the_clip_of_the_file(bounds, printed, tmp_path):
    (tmp_path / "mine.toml").write_text(f"{QUICK}{bounds}\n")
    text = fedbilevel(tmp_path, "noise mine.toml --epsilon 2").stdout
    assert f"[transforms]\n{printed}noise = " in text


CLINICS = """
import jax.numpy as jnp
import numpy as np

import fedbilevel as fb


def error(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def model():
    form = np.zeros((1, 4)), np.zeros(1)
    start = np.zeros(4)
    problem = fb.BilevelProblem(error, error)
    return fb.problems.Model(problem, start, start, {}, fb.LocalExamples(form, form))
"""
FAILING = """

def task():
    raise ValueError("it has no function task()")
"""
FEDERATION = """
rounds = 3
[problem]
name = "CustomProblem"
file = "clinics.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
batch_size = 8
[federation]
sites = ["a", "b"]
[transforms]
example_clip = 1.0
example_noise = 1.0
"""


@pytest.mark.slow
def test_a_federation_is_planned_without_the_data_of_its_sites(tmp_path):
    (tmp_path / "clinics.py").write_text(CLINICS)
    (tmp_path / "mine.toml").write_text(FEDERATION)
    refused = fedbilevel(tmp_path, "noise mine.toml --epsilon 2", code=2)
    assert "give --examples UPPER,LOWER" in refused.stderr
    # An error of the file's own function is no missing function.
    (tmp_path / "clinics.py").write_text(f"{CLINICS}{FAILING}")
    failed = fedbilevel(tmp_path, "noise mine.toml --epsilon 2", code=2)
    assert "it has no function task()" in failed.stderr
    assert "--examples" not in failed.stderr
    (tmp_path / "clinics.py").write_text(CLINICS)
    command = "noise mine.toml --epsilon 2 --examples 20,40"
    answer = json.loads(fedbilevel(tmp_path, f"{command} --json").stdout)
    assert answer["fewest_examples"] == {"upper": 20, "lower": 40}
    noise = answer["example_noise"]
    epsilon = max(
        spent({GaussianRelease(noise, PoissonDraws(8, size)): draws * 3}, 1e-5)
        for size, draws in ((20, 1), (40, 3))
    )
    assert 1.98 < epsilon <= 2.0
    # Noise of 2 · 1 / 8 on each of 4 numbers, in a mean over 2 devices.
    assert answer["length"] == pytest.approx(noise * 2 / (8 * 2**0.5))


@pytest.mark.nightly
def test_noise_that_leaves_nothing_is_reported(tmp_path):
    (tmp_path / "clinics.py").write_text(CLINICS)
    (tmp_path / "mine.toml").write_text(FEDERATION)
    command = "noise mine.toml --epsilon 0.05 --examples 20,40"
    plan = fedbilevel(tmp_path, command)
    assert "[transforms]\nexample_clip = 1\nexample_noise = " in plan.stdout
    assert "times as long as the longest mean of clipped gradients" in plan.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--epsilon 1 --examples 20", "--examples is '20'. Give two whole numbers, su"),
        ("--epsilon 1 --examples 0,4", "--examples has a number below 1. Give at le"),
        ("", "--epsilon is missing. Give the value after the option."),
        ("--epsilon 0", "--epsilon is 0. Give a number above 0."),
        ("--epsilon 1 --delta 1", "--delta is 1. Give a number above 0 and below 1."),
    ],
)
def test_mistakes_are_named_with_their_cure(arguments, message, tmp_path):
    (tmp_path / "mine.toml").write_text(QUICK)
    assert (
        message in fedbilevel(tmp_path, f"noise mine.toml {arguments}", code=2).stderr
    )
