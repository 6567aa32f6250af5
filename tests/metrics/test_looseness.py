"""The bounds of theory from estimated constants, against measured runs."""

from typing import Any

import numpy as np
import pytest

from fedbilevel import InMemoryDevices, LocalBSGM, NeumannSeries, run, theory
from fedbilevel.metrics.estimation import estimate_assumptions
from tests import quadratic

pytestmark = pytest.mark.slow

DEVICES, LOCAL_STEPS, ROUNDS = 4, 20, 40
HELD = quadratic.examples(np.random.default_rng(8), 100, 0.3)
MEAN = quadratic.Mean.of([HELD])
X, Y = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)


def objective(x):
    distances = MEAN.lower_solution(x) - HELD.upper.target
    ridge = 0.5 * quadratic.RIDGE * x @ x
    return 0.5 * np.mean(np.sum(distances**2, axis=1)) + MEAN.shift @ x + ridge


@pytest.mark.nightly
def test_theorem_1_holds_and_is_loose_by_orders_of_magnitude():
    problem = quadratic.problem()
    assumptions = estimate_assumptions(
        problem, InMemoryDevices([HELD]), X, Y, examples=20
    )
    factor = theory.lower_error_factor(assumptions)
    series = NeumannSeries(10, 0.9 / assumptions.gradient_lipschitz)
    start = theory.Start(
        objective_gap=float(objective(X) - objective(MEAN.solution())),
        lower_error=float(np.sum(MEAN.lower_solution(X) ** 2)),
    )

    def measure(algorithm) -> np.ndarray:
        """Return the running averages of the paper's measure, round by round."""
        devices = InMemoryDevices.sharing(HELD, DEVICES)
        points = [
            (np.asarray(result.x), np.asarray(result.y))
            for result in run(problem, algorithm, devices, X, Y, rounds=ROUNDS)
        ]
        values = [
            np.sum(MEAN.hypergradient(x) ** 2)
            + factor**2 * np.sum((y - MEAN.lower_solution(x)) ** 2)
            for x, y in ((X, Y), *points)
        ]
        return np.cumsum(values) / np.arange(1, ROUNDS + 2)

    # With the theorem's largest rates, for as many steps as a tuned run takes.
    settings: dict[str, Any] = {
        "upper_mixing": 100.0,
        "lower_mixing": 100.0,
        "local_steps": LOCAL_STEPS,
    }
    ceilings = theory.local_bsgm_ceilings(assumptions, series, **settings)
    slow = measure(LocalBSGM(hypergradient=series, **ceilings._asdict(), **settings))
    bound = theory.local_bsgm_bound(
        assumptions,
        series,
        start,
        **ceilings._asdict(),
        **settings,
        devices=DEVICES,
        steps=ROUNDS * LOCAL_STEPS,
    )
    assert bound.total > 1000 * slow[-1]

    # A tuned run lowers the average to a tenth; the bound predicts many more steps.
    tuned = measure(LocalBSGM(0.1, series, 1.0, 1.0, 2.0, 2.0, LOCAL_STEPS))
    target = tuned[0] / 10
    assert tuned[-1] < target
    wanted = []
    for rate in np.geomspace(1e-9, ceilings.learning_rate, 40):
        one_step = theory.local_bsgm_bound(
            assumptions,
            series,
            start,
            upper_rate=ceilings.upper_rate,
            lower_rate=ceilings.lower_rate,
            learning_rate=float(rate),
            **settings,
            devices=DEVICES,
            steps=1,
        )
        fading, lasting = sum(one_step[:4]), sum(one_step[4:])
        if lasting < target:
            wanted.append(fading / (target - lasting))
    steps = np.argmax(tuned < target) * LOCAL_STEPS
    assert min(wanted) > 1e6 * steps
