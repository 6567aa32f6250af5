"""Experiment files of federations, and what else their tests share."""

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
    # As the suite's own process computes.
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
    """Write an experiment file, and beside it the small problem; return the file."""
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
    """A command that runs, and the file with what it says on standard error."""

    process: subprocess.Popen[str]
    file: Path

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.file.read_text()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something, while the command runs."""

        def has() -> bool:
            assert self.process.poll() is None, self.said
            return happened()

        until(has, lambda: self.said)

    def until_its_end(self) -> None:
        """Wait until the command has ended well."""
        until(lambda: self.process.poll() is not None, lambda: self.said)
        assert self.process.returncode == 0, self.said


@contextmanager
def federating(file: Path, *options: str, **environment: str) -> Iterator[Command]:
    """Type the command in the directory of a file; it does not outlive the block."""
    said = file.with_suffix(".said")
    with (
        said.open("w") as errors,
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
            yield Command(process, said)
        finally:
            process.kill()


def home_in(kit: Path, run: str) -> Path:
    """Return the directory of a run in a kit, whoever submitted it, if it is there yet."""
    return next(kit.glob(f"fedbilevel/*/{run}"), kit / "none")
