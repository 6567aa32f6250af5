"""x64, strict dtype promotion and no rank promotion, in every test of mathematics."""

import os
from collections.abc import Iterator

# Tests run a program once or twice: compiling it in half the time is what counts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

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
