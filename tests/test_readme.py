"""The README is short, and its Python example prints the numbers that it states.

`test_transcript` runs every block of the README in a fresh environment at night.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso

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
def test_the_program_is_formatted():
    # Otherwise long lines could keep the number of lines small.
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--diff", "-"],
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=False,
    )
    assert formatted.returncode == 0, formatted.stdout


@pytest.mark.nightly
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


def error(y: np.ndarray, examples: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the mean squared error of a linear model."""
    return float(np.mean((examples[0] @ y - examples[1]) ** 2))


def ridge(penalty: float, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the solution of ridge regression with one penalty for all features."""
    penalties = len(targets) * penalty * np.eye(inputs.shape[1])
    return np.linalg.solve(inputs.T @ inputs + penalties, inputs.T @ targets)


def lasso(penalty: float, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the solution of the lasso."""
    model = Lasso(alpha=penalty, fit_intercept=False, max_iter=10_000)
    return np.asarray(model.fit(inputs, targets).coef_)


def test_pooled_rivals_have_the_errors_that_the_readme_states():
    # The data of the program: from its generator to its first device.
    variables: dict[str, Any] = {"np": np}
    exec(PROGRAM[PROGRAM.index("rng = ") : PROGRAM.index("upper = ")], variables)
    inputs, targets = variables["inputs"], variables["targets"]

    def rows(start: int, stop: int | None) -> tuple[np.ndarray, np.ndarray]:
        return inputs[:, start:stop].reshape(-1, 60), targets[:, start:stop].ravel()

    validation, training, test = rows(0, 10), rows(10, 20), rows(20, None)
    pooled = rows(0, 20)

    def choose(fit: Callable[..., np.ndarray]) -> float:
        """Return the penalty with the smallest validation error."""
        grid: list[float] = np.logspace(-4, 1, 101).tolist()
        return min(grid, key=lambda penalty: error(fit(penalty, *training), validation))

    penalty = choose(ridge)
    errors = [
        error(ridge(penalty, *training), test),
        error(ridge(0, *pooled), test),
        error(ridge(penalty, *pooled), test),
        error(lasso(choose(lasso), *pooled), test),
    ]
    number = r"([\d.]+\d)"
    _, tuned = stated(rf"The test error falls from {number} to {number}\.")
    rivals = stated(
        rf"chosen on the same validation examples, gives {number}\. Methods that pool "
        rf"all {number} examples in one place: least squares gives {number}, that "
        rf"ridge refit on them {number}, and a lasso refit on them {number}\."
    )
    assert len(pooled[1]) == rivals.pop(1)
    assert errors == pytest.approx(rivals, abs=0.005)
    # The conclusion of the README: of these methods, only the pooled lasso is better.
    assert min(rivals[:3]) > tuned > rivals[3]
