"""Every rule of `RULES` is refused with its reason, in Python and in a file."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    Clip,
    DeviceNoise,
    Download,
    ExampleNoise,
    FedBiO,
    FixedPoint,
    GaussianNoise,
    GeometricMedian,
    InMemoryDevices,
    Limits,
    LocalExamples,
    TopK,
    Weights,
    run,
    with_transforms,
)
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.transforms.rules import ADD, RULES, Rule
from fedbilevel.transforms.stages import Stage
from tests.federation.secure_federation import secure_run


class Doubled:
    """A transform of another type."""

    def stage(self):
        return Stage()


TRANSFORMS = {
    "download": Download(),
    "example_noise": ExampleNoise(1.0, 1.0),
    "clip": Clip(1.0),
    "device_noise": DeviceNoise(1.0, 2),
    "staged": Doubled(),
    "code": TopK(0.5),
    "fixed_point": FixedPoint(),
    "mean": GeometricMedian(),
    "server_noise": GaussianNoise(1.0),
}
"""A transform of each place, in their order."""
LINES = {
    "download": "download_bits = 8",
    "example_noise": "example_clip = 1.0\nexample_noise = 1.0",
    "clip": "clip = 1.0",
    "device_noise": "noise = 1.0\nnoise_devices = 2",
    "code": "top_share = 0.5",
    "fixed_point": "integer_bits = 16",
    "mean": "geometric_median = true",
    "server_noise": "noise = 1.0",
    "from_seed": "noise = 1.0\nclip = 1.0\nnoise_from_seed = true",
    "epsilon": "epsilon = 1.0",
}
"""The lines of each place in the table of transforms."""
LIMITS = {"norm_limit": 5.0, "distance_limit": 10.0}
NEED_A_CLIP = "device_noise", "server_noise", "fixed_point"
CASES = [
    (rule, place, other)
    for rule in RULES
    for place in rule.places
    for other in (rule.others[:1] if rule.cure == ADD else rule.others)
]


def places_of(rule: Rule, place: str, other: str) -> Counter[str]:
    """Return the places of settings that break a rule, and no rule before it."""
    places = Counter([place] if rule.cure == ADD else [place, other])
    if rule.cure != ADD and any(place in places for place in NEED_A_CLIP):
        places["clip"] = max(places["clip"], 1)
    return places


def start(places: Counter[str]) -> None:
    """Start a run in Python."""
    if "from_seed" in places:
        GaussianNoise(1.0, epsilon=1.0, from_seed=True)
    inner: Any = FedBiO(0.1)
    weights = Weights(upper=[1.0, 2.0]) if "levels" in places else None
    weights = Weights(upper=[1.0, 0.0]) if "one_level" in places else weights
    if "secure_sums" in places:
        secure_run(inner, weights=Weights(lower=range(5)) if weights else None)
    transforms = [
        TRANSFORMS[place] for place in TRANSFORMS for _ in range(places[place])
    ]
    algorithm = with_transforms(inner, *transforms) if transforms else inner
    problem = BilevelProblem(*[lambda x, y, batch: (y - x) ** 2] * 2)
    limits = {key[: -len("_limit")]: LIMITS[key] for key in LIMITS if key in places}
    devices = InMemoryDevices([LocalExamples(np.ones(2), np.ones(2))] * 2)
    limited = Limits(**limits)
    arguments = problem, algorithm, devices, 0.0, 0.0
    next(run(*arguments, rounds=1, limits=limited, weights=weights))


def read(places: Counter[str], file: Path) -> None:
    """Read a file with the settings."""
    lines = [f"{limit} = {value}" for limit, value in LIMITS.items() if limit in places]
    lines += ["[algorithm]", 'name = "FedBiO"', "learning_rate = 0.1"]
    if "secure_sums" in places:
        lines += ["[federation]", "secure_sums = true"]
    lines += ["[transforms]", *(LINES[place] for place in LINES if place in places)]
    if places["mean"] > 1:
        lines.append("trim_share = 0.1")
    file.write_text("\n".join(lines))
    read_experiment(file)


@pytest.mark.parametrize(
    ("rule", "place", "other"), CASES, ids=["-".join(case[1:]) for case in CASES]
)
def test_every_rule_is_refused_in_python_and_in_a_file(rule, place, other, tmp_path):
    places = places_of(rule, place, other)
    with pytest.raises(SettingError) as in_python:
        start(places)
    assert rule.reason in str(in_python.value)
    # A key is in a file once, and a transform of another type is none of its keys. In a
    # file a device has one weight.
    if {"staged", "levels", "one_level"} & set(places) or (
        rule.places == rule.others and place != "mean"
    ):
        return
    with pytest.raises(ExperimentError) as in_file:
        read(places, tmp_path / "mine.toml")
    assert rule.reason in str(in_file.value)
    assert "mine.toml, line" in str(in_file.value)
