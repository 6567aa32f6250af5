"""An experiment file may name transforms of uploads and downloads."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedbilevel import (
    AdaptiveClip,
    CentredClipping,
    Chain,
    Clip,
    DeviceNoise,
    Download,
    FedBiO,
    Feedback,
    GaussianNoise,
    GeometricMedian,
    Quantise,
    RandomK,
    TopK,
    TrimmedMean,
    with_transforms,
)
from fedbilevel.experiments.baseline import baseline_run
from fedbilevel.experiments.files.other_names import OTHER_NAMES
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run import prepare_run
from fedbilevel.experiments.schema import (
    Experiment,
    FederationSettings,
    TransformSettings,
)
from fedbilevel.tracking.records import read_records
from tests.commands.typing_in import QUICK, fedbilevel

ALGORITHM = """
[algorithm]
name = "FedBiO"
learning_rate = 0.1
"""
TABLE = {
    "clip = 0.5": (Clip(0.5),),
    "clip_quantile = 0.4": (AdaptiveClip(0.4),),
    "clip = 2.0\nclip_quantile = 0.4": (AdaptiveClip(0.4, first_norm=2.0),),
    "clip = 0.5\nnoise = 2.0\nepsilon = 4.0\ndelta = 1e-6": (
        Clip(0.5),
        GaussianNoise(2.0, delta=1e-6, epsilon=4.0),
    ),
    "clip = 0.5\nnoise = 2.0\nnoise_devices = 8": (Clip(0.5), DeviceNoise(2.0, 8)),
    "bits = 4": (Quantise(bits=4),),
    "bits = 4\ndownload_bits = 16": (Download(Quantise(bits=16)), Quantise(bits=4)),
    "top_share = 0.1\nbits = 8\nfeedback = true": (
        Feedback(Chain(TopK(0.1), Quantise(bits=8))),
    ),
    "random_share = 0.25": (RandomK(0.25),),
    "random_share = 0.25\nfeedback = true": (Feedback(RandomK(0.25, unbiased=False)),),
    "trim_share = 0.2": (TrimmedMean(0.2),),
    "geometric_median = true": (GeometricMedian(),),
    "clip = 0.5\nclipping_radius = 0.1": (Clip(0.5), CentredClipping(0.1)),
}


def read(text: str, directory: Path) -> Experiment:
    file = directory / "experiment.toml"
    file.write_text(f"{ALGORITHM}[transforms]\n{text}\n")
    return read_experiment(file)


@pytest.mark.slow
@pytest.mark.parametrize("text", TABLE)
def test_a_file_names_transforms(text, tmp_path):
    experiment = read(text, tmp_path)
    expected = with_transforms(FedBiO(0.1), *TABLE[text])
    assert experiment.federated_algorithm == expected
    copy = tmp_path / "copy.toml"
    write_experiment(experiment, copy)
    assert read_experiment(copy) == experiment


@pytest.mark.parametrize(("name", "key"), OTHER_NAMES.items())
def test_names_of_python_are_answered_with_the_key(name, key, tmp_path):
    table, _, last = name.rpartition(".")
    with pytest.raises(ExperimentError, match=f"unknown key {name}; the key is {key}"):
        read(f"{last} = 1", tmp_path)
    tables = {"transforms": TransformSettings, "federation": FederationSettings}
    other, _, right = key.rpartition(".")
    assert right in {field.name for field in fields(tables[other or table])}
    assert last not in {field.name for field in fields(tables[table])}


def test_the_command_line_names_transforms():
    experiment = with_overrides(
        Experiment(FedBiO(0.1)),
        ["--transforms.clip", "0.5", "--transforms.bits", "8"],
        "fedbilevel run",
    )
    assert experiment.transforms == TransformSettings(clip=0.5, bits=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noise = 1.0", "noise: needs clip or clip_quantile"),
        ("epsilon = 1.0", "epsilon: set noise or example_noise as well"),
        ("example_noise = 1.0", "example_noise: set example_clip as well"),
        ("example_clip = 1.0", "example_clip: set example_noise as well, .* noise"),
        (
            "example_clip = 1.0\nexample_noise = 1.0\nclip = 1.0\nnoise = 1.0",
            "excludes noise, since a run reports one",
        ),
        ("top_share = 0.1\nrandom_share = 0.1", "set top_share or random_share only"),
        ("feedback = true", "set top_share, random_share or bits as well"),
        ("bits = 3", "bits: give 16, 8, 4 or 2, not 3"),
        ("download_bits = 5", "download_bits: give 16, 8, 4 or 2, not 5"),
        (
            "trim_share = 0.1\ngeometric_median = true",
            "trim_share: excludes geometric_median",
        ),
        (
            "clip = 1.0\nnoise = 1.0\ntrim_share = 0.1",
            "the influence of one device on a robust mean is not known",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(text, message, tmp_path):
    with pytest.raises(ExperimentError, match=message):
        read(text, tmp_path).federated_algorithm  # noqa: B018


@pytest.mark.nightly
def test_a_private_run_records_epsilon_and_has_no_baseline(tmp_path):
    (tmp_path / "mine.toml").write_text(
        f"{QUICK}[transforms]\nclip = 0.1\nnoise = 4.0\nepsilon = 3.0\n"
    )
    # The noise is secret. Nearly always it makes the loss worse: exit code 3.
    ended = fedbilevel(tmp_path, "run mine.toml --evaluation.every 1", code=(0, 3))
    records = list(read_records(tmp_path / "runs" / "mine"))
    spent = [record.metrics["epsilon"] for record in records]
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    assert records[-1].rounds < 12
    assert 2.5 < spent[-1] <= 3.0
    assert "The budget epsilon=3 allows" in ended.stderr
    assert "baseline" not in ended.stdout
    # The budget is the end: nothing is left to resume.
    assert "To resume" not in ended.stderr
    assert "Results are in" in ended.stdout


def test_the_baseline_has_the_transforms_of_the_run(tmp_path):
    experiment = read("clip = 0.1\nbits = 8", tmp_path)
    algorithm: Any = baseline_run(experiment, prepare_run(experiment)).algorithm
    expected: Any = experiment.federated_algorithm
    assert algorithm.transforms == expected.transforms
    assert algorithm.algorithm.upper_rate == 0
