"""F²SA converges to the solution of its penalised problem, with a bias of O(1/λ)."""

from functools import cache

import numpy as np
import pytest

from fedbilevel import F2SA, InMemoryDevices, LocalExamples, Run, sweep
from fedbilevel.problems import Quadratic, quadratic_task, random_quadratic
from fedbilevel.problems.quadratic_task import LowerRows, UpperRows

APART = random_quadratic(devices=3, heterogeneity=0.5)
MULTIPLIERS = (10.0, 20.0, 40.0, 80.0)


def penalised_solution(quadratic: Quadratic, multiplier: float) -> np.ndarray:
    """Return x at which the gradient of min_w (f̄ + λḡ) − λ min_y ḡ vanishes.

    With ∇y ḡ = Āy − C̄x − d̄ and ∇y f̄ = y − b̄: y = Ā⁻¹(C̄x + d̄), w = (Ā + I/λ)⁻¹(C̄x +
    d̄ + b̄/λ), and c̄ + rx − λC̄ᵀ(w − y) = 0, a linear equation in x.
    """
    matrix, coupling = quadratic.matrices.mean(0), quadratic.couplings.mean(0)
    offset, target = quadratic.offsets.mean(0), quadratic.targets.mean(0)
    inverse = np.linalg.inv(matrix)
    softer = np.linalg.inv(matrix + np.eye(len(matrix)) / multiplier)
    slope = multiplier * coupling.T @ (softer - inverse) @ coupling
    constant = (
        multiplier
        * coupling.T
        @ (softer @ (offset + target / multiplier) - inverse @ offset)
    )
    left = quadratic.ridge * np.eye(coupling.shape[1]) - slope
    return np.linalg.solve(left, constant - quadratic.shifts.mean(0))


@cache
def settled() -> np.ndarray:
    """Return the limit of x for each multiplier, on heterogeneous devices."""
    parts = zip(
        APART.targets,
        APART.shifts,
        APART.matrices,
        APART.couplings,
        APART.offsets,
        strict=True,
    )
    held = [
        LocalExamples(
            UpperRows(target[None], np.zeros_like(target[None]), shift[None]),
            LowerRows(matrix[None], coupling[None], offset[None]),
        )
        for target, shift, matrix, coupling, offset in parts
    ]
    x, y = np.zeros(APART.shifts.shape[1]), np.zeros(APART.targets.shape[1])
    rate = 0.5 / np.linalg.eigvalsh(APART.matrices).max()
    # The direction of x is proportional to λ until y and w have converged.
    settings = [F2SA(rate, factor, upper_rate=8.0 / factor) for factor in MULTIPLIERS]
    problem, devices = quadratic_task(APART).problem, InMemoryDevices(held)
    result = sweep(
        Run(problem, settings[0], devices, x, y, rounds=10_000),
        settings,
        seeds=[0],
        measure=lambda server: server.x,
    )
    return np.asarray(result.measurements)[:, 0, -1]


@pytest.mark.slow
def test_it_settles_at_the_solution_of_the_penalised_problem():
    for x, multiplier in zip(settled(), MULTIPLIERS, strict=True):
        expected = penalised_solution(APART, multiplier)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_its_bias_falls_as_one_over_the_multiplier():
    bias = np.linalg.norm(settled() - APART.solution(), axis=-1)
    slopes = np.diff(np.log(bias)) / np.diff(np.log(MULTIPLIERS))
    np.testing.assert_allclose(slopes, -1.0, rtol=0, atol=0.15)
