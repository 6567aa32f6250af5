"""Every algorithm with every noise: bad examples of one device change nothing seen.

The issue: with `AutoFedBiO` and `DeviceNoise`, one example that was not finite excluded
its device, so that the noise had a smaller variance and the log named the device.
"""

from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import chi2

from fedbilevel import with_transforms
from fedbilevel.algorithms import Phase
from tests.algorithms.table import ALGORITHMS
from tests.transforms import observed
from tests.transforms.observed import CORRUPTIONS, Observation, Observed, observe

SIGNIFICANCE = 1e-6
"""Two-sided significance of each test of a variance. With five devices the noise of
four has 0.8 of the variance, which is 5 to 12 standard deviations of its estimate."""
BY_DEVICE = [
    *(f"{clip} GaussianNoise" for clip in observed.BOUNDS),
    *(f"{clip} DeviceNoise" for clip in observed.BOUNDS),
    "Download Clip GaussianNoise",
    "Clip Feedback GaussianNoise",
    "AdaptiveClip DeviceNoise FixedPoint",
]
BY_EXAMPLE = ["ExampleNoise", "ExampleNoise Clip", "ExampleNoise AdaptiveClip"]
UNBOUNDED = "sends values beside its update, for which"
REFUSED = {
    **{("ShroFBO, unequal steps", names): UNBOUNDED for names in BY_DEVICE},
    **{("two exchanges, private state", names): UNBOUNDED for names in BY_DEVICE},
    **{
        ("LocalBSGVRM, decaying, warm start", f"ClipEach {noise}"): "but a phase of"
        for noise in ("GaussianNoise", "DeviceNoise")
    },
    **{("AutoFedBiO", names): "does not protect AutoFedBiO" for names in BY_EXAMPLE},
    **{
        ("LocalBSGM, optax schedule, conjugate gradient", names): "custom_linear_solve"
        for names in BY_EXAMPLE
    },
}
"""Pairs that the library refuses, and a part of the reason."""
IN_CHECK = {("FedBiO, private lower level", "Clip GaussianNoise")}


def sweep(transforms: list[str]) -> list[Any]:
    """Return all algorithms with all transforms, one pair of them in `make check`.

    `test_masks` has smaller versions for the day.
    """
    return [
        pytest.param(
            name,
            names,
            marks=pytest.mark.slow
            if (name, names) in IN_CHECK
            else pytest.mark.nightly,
        )
        for name in ALGORITHMS
        for names in transforms
    ]


def variables_of(algorithm: Any, phase: Phase) -> int:
    """Return the number of variables of a phase's update."""
    server, _ = algorithm.init(observed.PROBLEM, *observed.START)
    server = jax.tree.map(np.asarray, server)
    assert phase.reference is not None
    return len(phase.reference(phase.broadcast(server)))


def transforms_for(inner: Any, names: str) -> Any:
    """Return transforms with a bound for each variable of the last phase."""
    last = inner.phases(observed.PROBLEM)[-1]
    return observed.transforms(names, variables_of(inner, last))


def observations(inner: Any, names: str) -> dict[str, Observation]:
    transforms = transforms_for(inner, names)
    algorithm = with_transforms(Observed(inner), *transforms)
    values = {"usual": 1.0, "none": 0.0, **CORRUPTIONS}
    return {name: observe(algorithm, value) for name, value in values.items()}


def refuses(name: str, names: str) -> bool:
    """Return whether a pair is refused, and check the reason."""
    if (name, names) not in REFUSED:
        return False
    inner = ALGORITHMS[name]()
    transforms = transforms_for(inner, names)
    with pytest.raises(ValueError, match=REFUSED[name, names]):
        observe(with_transforms(inner, *transforms), 1.0)
    return True


def assert_variance(numbers: Any, deviation: float) -> None:
    """Check a variance by the interval of the sample variance."""
    count = len(numbers)
    ends = np.array([SIGNIFICANCE / 2, 1 - SIGNIFICANCE / 2])
    low, high = chi2.ppf(ends, count) / count
    assert low <= np.mean(np.square(numbers)) / deviation**2 <= high


def deviation_of(inner: Any, names: str, name: str) -> float:
    """Return the standard deviation of the noise on a mean, by docs/privacy-details.md.

    It is multiplier · bound / devices / √a, with the share a of a part.
    """
    phases = *inner.opening(observed.PROBLEM), *inner.phases(observed.PROBLEM)
    phase = next(phase for phase in phases if phase.name == name)
    has_units = phase.beside.units is not None
    rest = 1.0 - 0.08 * has_units - 0.02 * ("AdaptiveClip" in names)
    parts = 1 if "Clip" in names.split() else variables_of(inner, phase)
    size = observed.MULTIPLIER * observed.CLIP / observed.DEVICES
    return float(size / np.sqrt(rest / parts))


@pytest.mark.parametrize(("name", "names"), sweep(BY_DEVICE))
def test_noise_by_device_shows_nothing_of_bad_examples(name, names, caplog):
    if refuses(name, names):
        return
    inner = ALGORITHMS[name]()
    seen = observations(inner, names)
    for observation in seen.values():
        assert observation.participants == seen["usual"].participants
        assert observation.counted[0] == list(range(observed.DEVICES))
        assert not any(info or any(spread) for info, spread in observation.reported)
        # The chi-square statistic of means within their bounds differs by at most 1.
        for phase, change in observation.changes.items():
            assert_variance(change, deviation_of(inner, names, phase))
    # All masked numbers are zero, so the released ones are equal to the last bit.
    assert_equal(seen["NaN"].server, seen["infinity"].server)
    assert "excluded" not in caplog.text


@pytest.mark.parametrize(("name", "names"), sweep(BY_EXAMPLE))
def test_noise_by_example_shows_nothing_of_bad_examples(name, names, caplog):
    if refuses(name, names):
        return
    seen = observations(ALGORITHMS[name](), names)
    for observation in seen.values():
        assert observation.participants == seen["usual"].participants
        assert observation.counted[0] == list(range(observed.DEVICES))
        # The noise of oracles is that of the same calls, whatever the examples are.
        for phase, change in observation.changes.items():
            assert_variance(change, np.std(seen["none"].changes[phase]))
    for corruption in ("NaN", "infinity"):
        # The results of such an example are zero, as those of an example of 0.
        assert_equal(seen[corruption].server, seen["none"].server)
    assert "excluded" not in caplog.text


def assert_equal(server: Any, other: Any) -> None:
    for leaf, same in zip(*map(jax.tree.leaves, (server, other)), strict=True):
        assert np.all(np.isfinite(leaf))
        np.testing.assert_array_equal(leaf, same)
