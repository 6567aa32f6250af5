"""Compiler flags of the tests: programs run once or twice, so compile time matters.

Tests that remove `XLA_FLAGS` use the default flags, as readers of the README do.
"""

QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""No optimisation halves the compile time; no fused kernels halve it again."""


def for_devices(count: int) -> str:
    """Return the flags of a process with a number of devices."""
    return f"{QUICKLY} --xla_force_host_platform_device_count={count}"
