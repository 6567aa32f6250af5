"""The two readings of the paper's averaging step, both transcribed, side by side."""

import numpy as np
import pytest

from fedbilevel import Samples
from tests import quadratic
from tests.algorithms import transcription

DEVICES, ROUNDS = 4, 40
SETTINGS = transcription.Settings(
    alpha=2.0, beta=3.0, rho1=0.3, rho2=0.5, theta=0.15, p=4, eta=lambda t: 0.2
)


def run_other_reading(number, settings, x, y, devices, rounds, draw):
    """Average u_t and v_t together with x_{t+1} and y_{t+1}, as the lines stand."""
    alpha, beta, rho1, rho2, theta, p, eta = settings
    states = [transcription.State(x, y, x, y) for _ in range(devices)]
    previous = list(states)
    averages = []
    for t in range(rounds * p):
        for k, (x_t, y_t, u, v) in enumerate(states):
            samples = draw(
                *((0, k, 0) if t == 0 else ((t - 1) // p, k, (t - 1) % p + 1))
            )
            h = transcription.hypergradient(x_t, y_t, samples, theta)
            g = transcription.lower_gradient(x_t, y_t, samples)
            if t == 0:
                u, v = h, g
            elif number == 1:
                a, b = alpha * eta(t - 1), beta * eta(t - 1)
                u, v = (1 - a) * u + a * h, (1 - b) * v + b * g
            else:
                a, b = alpha * eta(t - 1) ** 2, beta * eta(t - 1) ** 2
                old = previous[k]
                h_old = transcription.hypergradient(old.x, old.y, samples, theta)
                g_old = transcription.lower_gradient(old.x, old.y, samples)
                u, v = (1 - a) * (u - h_old) + h, (1 - b) * (v - g_old) + g
            previous[k] = states[k]
            moved = x_t - rho1 * eta(t) * u, y_t - rho2 * eta(t) * v
            states[k] = transcription.State(*moved, u, v)
        if (t + 1) % p == 0:
            fields = zip(*states, strict=True)
            average = transcription.State(*(np.mean(f, axis=0) for f in fields))
            averages.append(average)
            states = [average] * devices
    return averages


def drawer(noise):
    def draw(round_number, device, i):
        generator = np.random.default_rng([round_number, device, i])

        def one():
            return quadratic.examples(generator, 1, noise)

        curvature = tuple(one().lower for _ in range(3))
        return Samples(one().upper, one().lower, one().lower, curvature)

    return draw


def both(number, noise):
    x, y = np.ones(quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)
    arguments = number, SETTINGS, x, y, DEVICES, ROUNDS, drawer(noise)
    ours = transcription.run(*arguments).averages
    other = run_other_reading(*arguments)
    moved = np.linalg.norm(ours[-1].x - x)
    apart = max(np.linalg.norm(a.x - b.x) for a, b in zip(ours, other, strict=True))
    return apart / moved


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_without_noise_both_readings_are_one_algorithm(number):
    assert both(number, noise=0.0) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_with_noise_they_differ_by_little(number):
    assert 1e-6 < both(number, noise=0.3) < 0.05
