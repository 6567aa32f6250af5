"""Compiler flags of the tests: programs run once or twice, so compile time matters.

Tests that remove `XLA_FLAGS` use the default flags, as readers of the README do.
"""

QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
"""No optimisation halves the compile time; no fused kernels halve it again.

Small programs compile in 18 % less CPU time if they are not split to compile their
parts in parallel.
"""


def for_devices(count: int) -> str:
    """Return the flags of a process with a number of devices."""
    return f"{QUICKLY} --xla_force_host_platform_device_count={count}"
