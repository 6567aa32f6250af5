"""The README is short, and its Python example prints the numbers that it states.

`test_transcript` runs every block of the README in a fresh environment at night.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text("utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
LONGEST_README = 150
LONGEST_PROGRAM = 25


def stated(pattern: str) -> list[float]:
    """Return the numbers that a sentence of the README states."""
    match = re.search(pattern, " ".join(TEXT.split()))
    assert match is not None, pattern
    return [float(number) for number in match.groups()]


def test_the_readme_and_its_program_are_short():
    assert len(TEXT.splitlines()) <= LONGEST_README
    assert len(PROGRAM.splitlines()) <= LONGEST_PROGRAM


@pytest.mark.process
def test_the_program_prints_the_improvement_that_the_readme_states(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    # A user's environment has none of the compiler flags of the test suite.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    # Processor time, since other programs may be using the machine.
    before = os.times()
    result = subprocess.run(
        [sys.executable, "-W", "error", tmp_path / "program.py"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    after = os.times()
    assert result.returncode == 0, result.stderr
    assert after.children_user - before.children_user < 60
    printed = [float(error) for error in re.findall(r": (\S+)", result.stdout)]
    errors = stated(r"The test error falls from ([\d.]+) to ([\d.]+)\.")
    assert printed == pytest.approx(errors, abs=0.03)


def test_one_penalty_for_all_features_is_worse_as_the_readme_states():
    # The data of the program, up to its first function.
    variables: dict[str, np.ndarray] = {}
    exec(PROGRAM[: PROGRAM.index("def ")], variables)
    inputs, targets = variables["inputs"], variables["targets"]

    def rows(start: int, stop: int | None) -> tuple[np.ndarray, np.ndarray]:
        return inputs[:, start:stop].reshape(-1, 60), targets[:, start:stop].ravel()

    def error(y: np.ndarray, examples: tuple[np.ndarray, np.ndarray]) -> float:
        return float(np.mean((examples[0] @ y - examples[1]) ** 2))

    validation, (features, labels), test = rows(0, 10), rows(10, 20), rows(20, None)
    gram, moment = features.T @ features, features.T @ labels
    models = [
        np.linalg.solve(gram + len(labels) * penalty * np.eye(60), moment)
        for penalty in np.logspace(-4, 1, 101)
    ]
    chosen = min(models, key=lambda model: error(model, validation))
    (single,) = stated(r"chosen on the same validation examples, gives ([\d.]+)\.")
    assert error(chosen, test) == pytest.approx(single, abs=0.01)
    _, tuned = stated(r"The test error falls from ([\d.]+) to ([\d.]+)\.")
    assert tuned < single
