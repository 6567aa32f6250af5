"""A run that a script leaves unfinished at module level ends without an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiling import QUICKLY

pytestmark = pytest.mark.process
SCRIPT = """
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedbilevel as fb


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


held = fb.LocalExamples(np.ones(4), np.ones(6))
rounds = fb.run(
    fb.BilevelProblem(loss, loss),
    fb.FedBiO(0.1),
    fb.InMemoryDevices([held, held]),
    3.0,
    0.0,
    rounds=5,
    checkpoints=fb.Checkpoints(Path(sys.argv[1])) if sys.argv[1:] else None,
)
print(next(rounds).number)
"""


@pytest.mark.parametrize("directories", [(), ("checkpoints",)])
def test_a_run_left_at_module_level_ends_silently(tmp_path: Path, directories):
    (tmp_path / "script.py").write_text(SCRIPT)
    # XLA prints an error about programs that another machine has cached.
    environment = {**os.environ, "XLA_FLAGS": QUICKLY, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    result = subprocess.run(
        [sys.executable, "script.py", *directories],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")
