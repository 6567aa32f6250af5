"""A run of PyTorch computes nothing in JAX, and the core never imports PyTorch."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

RUN = """
import torch

from fedbilevel import (
    AutoFedBiO, FedBiOAcc, LocalBSGVRM, LocalExamples, NeumannSeries, run
)
from fedbilevel.torch import TensorDevices, TensorSimulation, bilevel_problem

problem = bilevel_problem(
    upper_loss=lambda x, y, batch: torch.mean((y - batch) ** 2),
    lower_loss=lambda x, y, batch: torch.mean((y - x * batch) ** 2),
)
devices = TensorDevices([LocalExamples(torch.ones(4), torch.ones(4))] * 3)
for algorithm in (
    AutoFedBiO(2), FedBiOAcc(0.1), LocalBSGVRM(0.1, NeumannSeries(2, 0.1))
):
    for vectorised in (True, False):
        engine = TensorSimulation(vectorised)
        *_, last = run(
            problem,
            algorithm,
            devices,
            torch.tensor(3.0),
            torch.tensor(0.0),
            rounds=2,
            engine=engine,
        )
        assert torch.isfinite(last.x)
print("finished")
"""


def run_python(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_jax_compiles_nothing_in_a_run_of_pytorch():
    # JAX raises an error when it computes anything on a platform that does not exist.
    refused = run_python("import jax; jax.numpy.ones(1)", JAX_PLATFORMS="none")
    assert refused.returncode != 0
    result = run_python(RUN, JAX_PLATFORMS="none")
    assert result.stdout == "finished\n", result.stderr


def test_the_core_does_not_import_pytorch():
    code = "import sys, fedbilevel.engines.run; print('torch' in sys.modules)"
    assert run_python(code).stdout == "False\n"
