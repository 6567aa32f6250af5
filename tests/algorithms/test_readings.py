"""A comparison of three readings of the paper's averaging step.

The pseudo-code of both algorithms uploads u_{t+1} and v_{t+1} in a line above the line
that computes them. (1) All four variables are computed, then averaged, as in the
package. (2) In the printed order: u_t and v_t are averaged with x_{t+1} and y_{t+1}.
(3) x_{t+1} and y_{t+1} are averaged first; u_{t+1} and v_{t+1} are evaluated at the
mean and averaged in a second exchange.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedbilevel import Samples
from tests import quadratic
from tests.algorithms import transcription
from tests.algorithms.transcription import State

DEVICES = 4
SETTINGS = transcription.Settings(
    alpha=2.0, beta=3.0, rho1=0.3, rho2=0.5, theta=0.15, p=4, eta=lambda t: 0.2
)
SLOWER = SETTINGS._replace(eta=lambda t: 0.1)
FEATURES = 5


class Problem(NamedTuple):
    """Hand-written estimates, samples and the initial point."""

    hypergradient: Callable[..., Any]
    lower_gradient: Callable[..., Any]
    draw: Callable[..., Any]
    x: np.ndarray
    y: np.ndarray
    settings: transcription.Settings
    rounds: int


def run(reading: int, number: int, problem: Problem) -> list[State]:
    """Return the averages of Algorithm 1 or 2 in one of the readings."""
    alpha, beta, rho1, rho2, theta, p, eta = problem.settings

    def estimates(x, y, samples):
        return (
            problem.hypergradient(x, y, samples, theta),
            problem.lower_gradient(x, y, samples),
        )

    def mean(states):
        fields = zip(*states, strict=True)
        return State(*(np.mean(field, axis=0) for field in fields))

    def moved(state, t):
        x, y = state.x - rho1 * eta(t) * state.u, state.y - rho2 * eta(t) * state.v
        return state._replace(x=x, y=y)

    def renewed(state, previous, samples, t):
        """Return the state with u and v at its point, from the previous estimates."""
        h, g = estimates(state.x, state.y, samples)
        a, b = alpha * eta(t) ** number, beta * eta(t) ** number
        if number == 1:
            u, v = (1 - a) * state.u + a * h, (1 - b) * state.v + b * g
        else:
            old_h, old_g = estimates(previous.x, previous.y, samples)
            u = (1 - a) * (state.u - old_h) + h
            v = (1 - b) * (state.v - old_g) + g
        return state._replace(u=u, v=v)

    start = problem.x, problem.y
    states = [
        State(*start, *estimates(*start, problem.draw(0, k, 0))) for k in range(DEVICES)
    ]
    averages = []
    for t in range(problem.rounds * p):
        previous, last = states, (t + 1) % p == 0
        states = [moved(state, t) for state in states]
        if last and reading == 2:
            # Devices store their previous points; u and v are averaged too early.
            states = [mean(states)] * DEVICES
            averages.append(states[0])
        if last and reading == 3:
            point = mean(states)
            states = [state._replace(x=point.x, y=point.y) for state in states]
        states = [
            renewed(state, before, problem.draw(t // p, k, t % p + 1), t)
            for k, (state, before) in enumerate(zip(states, previous, strict=True))
        ]
        if last and reading != 2:
            states = [mean(states)] * DEVICES
            averages.append(states[0])
    return averages


def quadratic_problem(noise: float) -> Problem:
    def draw(round_number, device, i):
        generator = np.random.default_rng([round_number, device, i])

        def example():
            return quadratic.examples(generator, 1, noise)

        curvature = tuple(example().lower for _ in range(3))
        return Samples(example().upper, example().lower, example().lower, curvature)

    return Problem(
        transcription.hypergradient,
        transcription.lower_gradient,
        draw,
        np.ones(quadratic.X_SIZE),
        np.ones(quadratic.Y_SIZE),
        SETTINGS,
        rounds=40,
    )


def logistic_problem(seed: int) -> Problem:
    """Return logistic regression with a penalty for each weight, batches of 1.

    g = log(1 + exp(−b aᵀy)) + ½ Σ exp(x_i) y_i², and f is the same without penalty.
    An example is b a.
    """

    def draw(round_number, device, i):
        generator = np.random.default_rng([round_number, device, i, seed])
        features = generator.normal(size=(6, FEATURES))
        labels = np.sign(features @ np.linspace(-1, 1, FEATURES) + features[:, 0] ** 2)
        upper, lower, cross, *curvature = labels[:, None] * features
        return Samples(upper, lower, cross, tuple(curvature))

    def gradient(y, example):
        return -example / (1 + np.exp(example @ y))

    def hypergradient(x, y, samples, theta):
        power = total = gradient(y, samples.upper)
        for example in reversed(samples.curvature):
            share = 1 / (1 + np.exp(example @ y))
            curved = share * (1 - share) * example * (example @ power)
            power = power - theta * (curved + np.exp(x) * power)
            total = total + power
        return -np.exp(x) * y * theta * total

    def lower_gradient(x, y, samples):
        return gradient(y, samples.lower) + np.exp(x) * y

    start = np.zeros(FEATURES)
    return Problem(hypergradient, lower_gradient, draw, start, start, SLOWER, 160)


def difference(reading: int, number: int, problem: Problem) -> float:
    """Return the largest distance from x of reading 1, relative to its path length."""
    first, other = (run(which, number, problem) for which in (1, reading))
    length = np.linalg.norm(first[-1].x - problem.x)
    pairs = zip(first, other, strict=True)
    return float(max(np.linalg.norm(a.x - b.x) for a, b in pairs) / length)


NUMBERS = pytest.mark.parametrize("number", [1, 2])
READINGS = pytest.mark.parametrize("reading", [2, 3])


@pytest.mark.slow
@NUMBERS
def test_the_first_reading_is_that_of_the_transcription(number):
    problem = quadratic_problem(0.3)
    start = problem.x, problem.y
    whole = transcription.run(
        number, SETTINGS, *start, DEVICES, problem.rounds, problem.draw
    )
    for got, expected in zip(run(1, number, problem), whole.averages, strict=True):
        np.testing.assert_allclose(np.hstack(got), np.hstack(expected), rtol=1e-12)


@pytest.mark.nightly
@NUMBERS
@READINGS
def test_without_noise_all_readings_are_one_algorithm(reading, number):
    assert difference(reading, number, quadratic_problem(0.0)) < 1e-12


@pytest.mark.nightly
@NUMBERS
@READINGS
def test_with_noise_they_differ_by_little(reading, number):
    assert 1e-6 < difference(reading, number, quadratic_problem(0.3)) < 0.05


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("reading", "number", "share"),
    [(2, 1, 0.0066), (2, 2, 0.12), (3, 1, 0.0038), (3, 2, 0.12)],
)
def test_on_a_noisy_logistic_problem_they_differ_by_percents(reading, number, share):
    shares = [difference(reading, number, logistic_problem(seed)) for seed in range(4)]
    assert np.mean(shares) == pytest.approx(share, rel=0.05)
