"""x64, strict dtype promotion and no rank promotion, in every test of mathematics."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_numbers(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("single_precision"):
        yield
        return
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield
