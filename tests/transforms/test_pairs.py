"""All ordered pairs of transforms: each is refused with a reason, or works everywhere.

To add a transform, add it to `TRANSFORMS`, and a row and a column to `TABLE`.
"""

from typing import Any

import pytest

from fedbilevel import (
    AdaptiveClip,
    CentredClipping,
    Clip,
    ClipEach,
    DebugSimulation,
    DeviceNoise,
    Download,
    ExampleNoise,
    FedBiO,
    Feedback,
    FixedPoint,
    GaussianNoise,
    GeometricMedian,
    Quantise,
    RandomK,
    Simulation,
    TopK,
    TrimmedMean,
    with_transforms,
)
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation
from tests.engines.test_equality import assert_same, shards
from tests.transforms.test_transforms import at_sites, trajectory

TRANSFORMS: dict[str, Any] = {
    "Download": Download(smallest=2),
    "ExampleNoise": ExampleNoise(0.5, 0.5, from_seed=True),
    "Clip": Clip(0.5),
    "ClipEach": ClipEach((0.3, 0.2, 0.4)),
    "AdaptiveClip": AdaptiveClip(first_norm=0.3),
    "DeviceNoise": DeviceNoise(0.5, len(federation.SIZES), from_seed=True),
    "GaussianNoise": GaussianNoise(0.5, from_seed=True),
    "TopK": TopK(0.5),
    "RandomK": RandomK(0.5),
    "Quantise": Quantise(),
    "Feedback": Feedback(TopK(0.5)),
    "FixedPoint": FixedPoint(),
    "TrimmedMean": TrimmedMean(0.2),
    "GeometricMedian": GeometricMedian(),
    "CentredClipping": CentredClipping(0.2),
}

# Rows are the first transform, columns the second, both in the order of `TRANSFORMS`.
TABLE = """
    Download         d . . . . u u . . . . v . . .
    ExampleNoise     a n . . . x x . . . . v . . .
    Clip             a ! c c c . . . . . . . . . .
    ClipEach         a ! c c c . . . . . . . . . .
    AdaptiveClip     a ! c c c . . . . . . . . . .
    DeviceNoise      u x < < < n b s s s s u i i i
    GaussianNoise    u x < < < b n u u u u X i i i
    TopK             a ! < < < s u . . . f y . . .
    RandomK          a ! < < < s u . . . f y . . .
    Quantise         a ! < < < s u q q q f y . . .
    Feedback         a ! < < < s u f f f f y . . .
    FixedPoint       v v < < < u X y y y y w z z z
    TrimmedMean      a ! < < < i i e e e e z m m m
    GeometricMedian  a ! < < < i i e e e e z m m m
    CentredClipping  a ! < < < i i e e e e z m m m
"""
REFUSALS = {
    "d": "excludes Download, since a downlink has one code. Remove one",
    "a": "Devices decode what they receive before they work. Pass transforms in",
    "c": "since an update has one set of bounds. Remove one",
    "n": "since ε is computed for one noise. Remove one",
    "b": "since ε is computed for one noise. Remove one",
    "x": "since a run reports one ε: by example or by device",
    "!": "Devices add the noise of examples before they have an update. Pass",
    "m": "since an exchange has one mean. Remove one",
    "s": "a code of each update shows more than the sum. Use GaussianNoise",
    "i": "the influence of one device on a robust mean is not known, .* Remove one",
    "u": "needs Clip, ClipEach or AdaptiveClip, since noise",
    "v": "needs Clip, ClipEach or AdaptiveClip, since the unit",
    "<": "Devices clip first: noise needs a bound, .* Pass transforms in the order",
    "e": "Devices encode updates before the server averages them. Pass transforms in",
    "X": "cannot clip again, so ε would be wrong. Use DeviceNoise, added before",
    "y": "the sum of codes is not the code of the sum. Remove one",
    "w": "since a number is rounded once. Remove one",
    "z": "a robust mean compares single updates, but integers are for sums. Remove one",
    "q": "sends integers, which .* cannot compress. Pass Quantise last",
    "f": "Feedback stores the error of all codes. Pass them to it",
}
ROWS = [line.split() for line in TABLE.split("\n") if line.strip()]
CELLS = {
    (first, second): cell
    for first, *cells in ROWS
    for second, cell in zip(TRANSFORMS, cells, strict=True)
}
REFUSED = {pair: REFUSALS[cell] for pair, cell in CELLS.items() if cell != "."}
ALLOWED = [pair for pair, cell in CELLS.items() if cell == "."]

BY_DAY: dict[tuple[str, str], Any] = {
    ("Download", "AdaptiveClip"): shards(2),
    ("Clip", "DeviceNoise"): Simulation(chunk_size=3),
    ("ClipEach", "Feedback"): "federation",
    ("Clip", "FixedPoint"): shards(2),
    # Compiled differences from a decoded point may have other last bits in each use.
    ("Download", "TrimmedMean"): DebugSimulation(),
}
"""Pairs of each type, and the engine with which `make check` compares them."""


def algorithm_of(pair: tuple[str, str]) -> Any:
    return with_transforms(ALGORITHMS["FedBiO"](), *(TRANSFORMS[name] for name in pair))


def assert_same_as_in_a_simulation(pair: tuple[str, str], engines: list[Any]) -> None:
    algorithm = algorithm_of(pair)
    # The noise of devices adds up only if all devices participate with equal weights.
    options = {"weights": None} if "DeviceNoise" in pair else {}
    expected = trajectory(algorithm, Simulation(), **options)
    for engine in engines:
        if engine != "federation":
            assert_same(expected, trajectory(algorithm, engine, **options))
        elif "DeviceNoise" in pair:
            with pytest.raises(ValueError, match="server of this federation sees each"):
                at_sites(algorithm)
        # A federation draws the server's noise from the operating system.
        elif "GaussianNoise" not in pair:
            assert_same(expected, at_sites(algorithm))


def test_the_table_has_all_pairs():
    assert [first for first, *_ in ROWS] == list(TRANSFORMS)
    assert len(CELLS) == len(TRANSFORMS) ** 2
    assert set(BY_DAY) <= set(ALLOWED)


@pytest.mark.parametrize("pair", REFUSED, ids="-".join)
def test_a_refusal_has_a_reason_and_a_cure(pair):
    with pytest.raises((ValueError, TypeError), match=REFUSED[pair]) as refusal:
        algorithm_of(pair)
    # The message names the transforms, or says that one of them is missing a third.
    named = [name for name in pair if name in str(refusal.value)]
    assert named == list(pair) or "needs" in str(refusal.value)


@pytest.mark.parametrize("pair", ALLOWED, ids="-".join)
def test_pairs_in_the_table_are_not_refused(pair):
    algorithm_of(pair)


@pytest.mark.slow
@pytest.mark.parametrize("pair", BY_DAY, ids="-".join)
def test_another_engine_gives_the_same_trajectory(pair):
    assert_same_as_in_a_simulation(pair, [BY_DAY[pair]])


@pytest.mark.nightly
@pytest.mark.parametrize("pair", ALLOWED, ids="-".join)
def test_every_engine_gives_the_same_trajectory(pair):
    engines = [Simulation(chunk_size=3), shards(2), DebugSimulation(), "federation"]
    assert_same_as_in_a_simulation(pair, engines)


def test_a_transform_of_a_transformed_algorithm_is_refused():
    inner = with_transforms(FedBiO(0.1), Clip(1.0))
    with pytest.raises(ValueError, match="Pass all transforms in one call"):
        with_transforms(inner, Quantise())
