"""Noise that is correlated between rounds: bounds, for docs/privacy-details.md.

A matrix mechanism publishes the prefix sums Au + Bz of the updates u of T rounds, where
A = BC, and z has independent entries of the deviation sens(C): the largest ‖Cu‖ for
contributions |u_t| ≤ 1 of a device in the rounds in which it participates. Independent
noise is C = I. See Denisov, McMahan, Rush, Smith and Thakurta, "Improved differential
privacy for SGD via optimal private linear operators on adaptive streams", NeurIPS 2022,
and, for participation with a separation, Choquette-Choo et al., "(Amplified) banded
matrix factorization", NeurIPS 2023.

With full participation, row t of B has b_t · C1 = t, so by Cauchy and Schwarz
‖b_t‖ sens(C) ≥ ‖b_t‖ ‖C1‖ ≥ t. Independent noise has √t √T: equal for t = T.
"""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedbilevel.problems import random_quadratic
from tests.transforms.correlated_values import SEPARATION, VALUES

CASES = json.loads(VALUES.read_text())["cases"]
FULL = [case for case in CASES if case["separation"] == 1]
SEPARATE = [case for case in CASES if case["separation"] == SEPARATION]


def name_of(case: dict[str, Any]) -> str:
    return f"{case['name']}, {case['rounds']}, {case['separation']}"


def encoder(case: dict[str, Any]) -> np.ndarray:
    """Return C, which is a diagonal or a lower triangular Toeplitz matrix."""
    rounds = case["rounds"]
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    matrix = np.where(lags > 0, np.array(case["column"])[np.abs(lags)], 0.0)
    return np.asarray(matrix + np.diag(case["diagonal"]))


def row_norms(matrix: np.ndarray) -> np.ndarray:
    """Return the norms of the rows of B = A C⁻¹ for prefix sums."""
    rounds = len(matrix)
    decoder = np.tri(rounds) @ np.linalg.inv(matrix)
    return np.asarray(np.linalg.norm(decoder, axis=1))


def sensitivity(matrix: np.ndarray, separation: int = 1) -> float:
    """Return the largest ‖Cu‖ for a C with CᵀC ≥ 0, where all u_t are 1 or 0.

    A device participates at most every `separation` rounds. For Toeplitz matrices with
    decreasing entries the earliest rounds are the worst, and for diagonal ones any.
    """
    assert (matrix.T @ matrix >= -1e-12).all()
    return float(np.linalg.norm(matrix[:, ::separation].sum(axis=1)))


def gains(case: dict[str, Any]) -> tuple[float, float]:
    """Return independent over correlated noise: of the last sum, and RMS of all."""
    rounds, separation = case["rounds"], case["separation"]
    matrix = encoder(case)
    own = sensitivity(matrix, separation) * row_norms(matrix)
    identity = np.eye(rounds)
    other = sensitivity(identity, separation) * row_norms(identity)
    return other[-1] / own[-1], float(np.linalg.norm(other) / np.linalg.norm(own))


def most(rounds: int) -> float:
    """Return √(3T/(2T+1)), the bound of the gain in the RMS of all sums.

    It is √(T Σ_t t) over √(Σ_t t²), with Σt = T(T+1)/2 and Σt² = T(T+1)(2T+1)/6.
    """
    return float(np.sqrt(3 * rounds / (2 * rounds + 1)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_equal_to_jax_privacy(case):
    matrix = encoder(case)
    np.testing.assert_allclose(row_norms(matrix) ** 2, case["squares"], rtol=1e-6)
    assert sensitivity(matrix, case["separation"]) == pytest.approx(
        case["sensitivity"], rel=1e-6
    )


@pytest.mark.parametrize("case", FULL, ids=name_of)
def test_with_full_participation_the_last_sum_has_no_less_noise(case):
    last, all_sums = gains(case)
    assert last <= 1 + 1e-9
    assert all_sums <= most(case["rounds"])


def test_the_best_of_jax_privacy_with_full_participation():
    table = {name_of(case): gains(case) for case in FULL}
    # Its optimiser of BLTs returns independent noise.
    for rounds, error in product((16, 64), ("mean", "max")):
        assert table[f"BLT, {error} error, {rounds}, 1"] == pytest.approx((1.0, 1.0))
    # The best diagonal: √(T(T+1)/2 · T) over Σ√t; it tends to √(9/8).
    for rounds in (16, 64):
        expected = rounds * np.sqrt((rounds + 1) / 2)
        expected /= np.sqrt(np.arange(1, rounds + 1)).sum()
        assert table[f"dense, {rounds}, 1"][1] == pytest.approx(expected, rel=1e-3)


def test_with_a_separation_correlated_noise_is_better():
    table = {name_of(case): gains(case) for case in SEPARATE}
    for last, all_sums in table.values():
        assert last > 1.8
        assert all_sums > 1.5
    assert table["banded, 64, 8"] == pytest.approx((2.32, 2.14), abs=0.01)
    assert table["BLT, mean error, 64, 8"] == pytest.approx((2.20, 2.02), abs=0.01)


def test_the_bounds_hold_for_random_factorisations():
    generator = np.random.default_rng(0)
    rounds = 7
    signs = np.array(list(product([-1.0, 1.0], repeat=rounds))).T
    best = 0.0
    for width in np.repeat([0.01, 0.1, 1.0], 100):
        matrix = np.tril(np.eye(rounds) + width * generator.normal(size=(rounds,) * 2))
        exact = np.linalg.norm(matrix @ signs, axis=0).max()
        noise = exact * row_norms(matrix)
        assert (noise >= np.arange(1, rounds + 1) - 1e-9).all()
        independent = np.sqrt(rounds * np.arange(1, rounds + 1))
        gain = float(np.linalg.norm(independent) / np.linalg.norm(noise))
        best = max(best, gain)
    assert 0.9 < best <= most(rounds)


def test_the_best_noise_for_a_weighted_sum_is_independent():
    """A last iterate is Σ w_t (u_t + noise_t): momentum and curvature give weights.

    With contributions of the signs of w, ‖b‖ sens(C) ≥ Σ|w_t|. Independent noise of
    the deviations 1 / √|w_t| attains it; of equal deviations, it has √T ‖w‖.
    """
    generator = np.random.default_rng(0)
    rounds = 6
    signs = np.array(list(product([-1.0, 1.0], repeat=rounds))).T
    for _ in range(200):
        weights = generator.normal(size=rounds)
        matrix = np.tril(np.eye(rounds) + 0.3 * generator.normal(size=(rounds,) * 2))
        row = np.linalg.solve(matrix.T, weights)
        noise = np.linalg.norm(row) * np.linalg.norm(matrix @ signs, axis=0).max()
        least = np.abs(weights).sum()
        assert noise >= least - 1e-9
        diagonal = np.sqrt(np.abs(weights))
        attained = np.linalg.norm(weights / diagonal) * np.linalg.norm(diagonal)
        assert attained == pytest.approx(least)


def gain_of_a_schedule(rounds: int, learning_rate: float, seed: int) -> float:
    """Return √T ‖w‖ / Σ w_t for the last x of FedBiO on a random quadratic.

    w_t is the Frobenius norm of the derivative of x after T rounds by the noise of
    round t. One local step is linear in (x, y, z).
    """
    quadratic = random_quadratic(devices=2, seed=seed)
    curvature, coupling = quadratic.matrices.mean(0), quadratic.couplings.mean(0)
    size, other = coupling.shape[1], len(coupling)
    step = np.block(
        [
            [-quadratic.ridge * np.eye(size), np.zeros((size, other)), -coupling.T],
            [coupling, -curvature, np.zeros((other, other))],
            [np.zeros((other, size)), np.eye(other), -curvature],
        ]
    )
    step = np.eye(len(step)) + learning_rate * step
    rows, weights = np.eye(size, len(step)), []
    for _ in range(rounds):
        weights.append(np.linalg.norm(rows))
        rows = rows @ step
    return float(np.sqrt(rounds) * np.linalg.norm(weights) / np.sum(weights))


def test_gain_of_less_noise_in_late_rounds():
    gains = {
        (rounds, rate): [gain_of_a_schedule(rounds, rate, seed) for seed in range(3)]
        for rounds in (30, 100, 300)
        for rate in (0.03, 0.1)
    }
    # Before a run has converged, all rounds matter equally.
    assert max(gains[30, 0.03]) < 1.01
    assert max(gains[100, 0.03]) < 1.08
    assert min(gains[100, 0.1]) > 1.1
    assert max(gains[100, 0.1]) < 1.6
    assert min(gains[300, 0.1]) > 1.3
    assert max(gains[300, 0.1]) < 2.7
