"""Experiment files of federations, and helpers for their tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.compiling import QUICKLY
from tests.federation import pulled
from tests.waiting import until

SITES = tuple(pulled.SIZES)
ENVIRONMENT = {
    **os.environ,
    # The same precision as in the process of the tests.
    "JAX_ENABLE_X64": "1",
    "XLA_FLAGS": QUICKLY,
}
SERIES = '{ name = "NeumannSeries", terms = 2, scale = 0.3 }'
LOCAL = f"""
learning_rate = 0.2
upper_mixing = 2.0
lower_mixing = 3.0
local_steps = 2
batch_size = 2
hypergradient = {SERIES}
"""
ALGORITHMS = {
    "LocalBSGM": LOCAL,
    "LocalBSGVRM": LOCAL,
    "FedNest": """
learning_rate = 0.2
lower_rounds = 2
lower_steps = 2
local_steps = 2
series = { terms = 2, scale = 0.3 }
""",
    "auto": """
local_steps = 2
batch_size = 2
""",
}


def written(
    directory: Path, algorithm: str, settings: str, sites: Sequence[str] = SITES
) -> Path:
    """Write an experiment file and its small problem; return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(pulled.__file__, directory / "pulled.py")
    file = directory / f"{algorithm}.toml"
    file.write_text(
        f"""federation.sites = {list(sites)}
{settings}
[problem]
name = "CustomProblem"
file = "pulled.py"
[algorithm]
name = "{algorithm}"
{ALGORITHMS[algorithm]}
"""
    )
    return file


class Command(NamedTuple):
    """A running command, and the file with its standard error."""

    process: subprocess.Popen[str]
    file: Path

    @property
    def output(self) -> str:
        """The output on standard error so far."""
        return self.file.read_text()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for a condition while the command runs."""

        def has() -> bool:
            assert self.process.poll() is None, self.output
            return happened()

        until(has, lambda: self.output)

    def until_its_end(self) -> None:
        """Wait until the command has ended with exit code 0."""
        until(lambda: self.process.poll() is not None, lambda: self.output)
        assert self.process.returncode == 0, self.output


@contextmanager
def federating(file: Path, *options: str, **environment: str) -> Iterator[Command]:
    """Run the command in the directory of a file; it ends with the block."""
    output = file.with_suffix(".output")
    with (
        output.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "fedbilevel", "federate", file.name, *options],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            cwd=file.parent,
            env={**ENVIRONMENT, **environment},
        ) as process,
    ):
        try:
            yield Command(process, output)
        finally:
            process.kill()


def home_in(kit: Path, run: str) -> Path:
    """Return the run directory in a kit, for any submitter, if it exists."""
    return next(kit.glob(f"fedbilevel/*/{run}"), kit / "none")
