"""Skips of tests that need an interface of Linux."""

import sys

import pytest


def require_linux() -> None:
    """Skip the test off Linux: it reads /proc, limits address space or sets a clock."""
    if sys.platform != "linux":
        pytest.skip("needs an interface of Linux")
