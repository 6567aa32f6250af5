"""How programs of tests are compiled: they run once or twice, so quickly.

What readers of the README have, the compiler's own choices, is tested by those tests
that take `XLA_FLAGS` away.
"""

QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""Half the time without optimisation, and half of that without fused kernels."""


def for_devices(count: int) -> str:
    """Return the flags of a process that is to see so many devices."""
    return f"{QUICKLY} --xla_force_host_platform_device_count={count}"
