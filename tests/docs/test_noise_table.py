"""The multipliers in docs/privacy.md: each spends at most the ε of its column."""

from pathlib import Path
from typing import Any

import pytest

from fedbilevel.privacy import Everyone, GaussianRelease, WithoutReplacement, spent

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
EPSILONS = 1.0, 2.0, 4.0, 8.0
ROWS: dict[str, Any] = {
    "everyone, or a sample that is known": Everyone(),
    "secret samples of 100 of 1,000": WithoutReplacement(100, 1000),
    "secret samples of 100 of 10,000": WithoutReplacement(100, 10_000),
}


@pytest.mark.parametrize("title", ROWS)
def test_multipliers_are_rounded_up(title):
    (line,) = [
        line for line in PAGE.read_text().splitlines() if line.startswith(f"| {title}")
    ]
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    for epsilon, cell in zip(EPSILONS, cells, strict=True):
        last_digit = 10.0 ** -len(cell.partition(".")[2])

        def after_100_rounds(noise: float) -> float:
            return spent({GaussianRelease(noise, ROWS[title]): 100}, 1e-5)

        assert after_100_rounds(float(cell)) <= epsilon
        # `noise_for` is up to 2e-4 above the smallest multiplier.
        assert after_100_rounds(float(cell) - 2 * last_digit) > epsilon
