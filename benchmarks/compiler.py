"""Turns off a step of XLA that gives wrong numbers; import it before computing anything.

On CPUs, jaxlib 0.10.2 hands some reductions under `vmap` to a library of kernels, which
reads memory that nothing has written: see issue 39103 of jax-ml/jax. A sweep of
LocalBSGVRM over 4 rates and 4 seeds, opened with a batch of 64, returned other numbers
in every process.
"""

import os

import jaxlib

# Elsewhere the flag may be unknown, and XLA ends a process that names an unknown flag.
if jaxlib.__version__ == "0.10.2":
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_experimental_ynn_fusion_type="
