"""x64, strict dtype promotion and no rank promotion, in every test of mathematics."""

import os
from collections.abc import Iterator
from pathlib import Path

from tests.compiling import for_devices

# The sharded engine has 4 devices. What one process has compiled others need not.
os.environ.setdefault("XLA_FLAGS", for_devices(4))
# Loading such a program says much about machines, into pipes that nobody reads.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

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


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs() -> Iterator[None]:
    # A compiled program holds memory maps, and Linux grants a process 65,530 of them.
    yield
    jax.clear_caches()
