import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    DebugSimulation,
    DeviceError,
    InMemoryDevices,
    LocalBSGM,
    LocalExamples,
    NeumannSeries,
    run,
)
from tests import quadratic
from tests.algorithms.table import TwoExchanges

pytestmark = pytest.mark.slow

ALGORITHM = LocalBSGM(0.1, NeumannSeries(1, 0.1), local_steps=2)


def one_example_devices(values):
    return InMemoryDevices(
        [LocalExamples(np.full(1, value), np.full(1, value)) for value in values]
    )


@pytest.mark.slow
def test_an_error_in_the_loss_names_device_round_phase_and_step():
    def loss(x, y, batch):
        # Only a concrete batch can be inspected, so only the device's work fails.
        if not isinstance(batch, jnp.ndarray):
            return jnp.sum(y**2)
        try:
            value = float(batch[0])
        except Exception:
            value = 0.0
        if value == 2.0:
            raise KeyError("no such label")
        return jnp.sum((y - x) ** 2)

    devices = one_example_devices([0.0, 1.0, 2.0])
    rounds = run(
        BilevelProblem(loss, loss),
        ALGORITHM,
        devices,
        1.0,
        1.0,
        rounds=1,
        engine=DebugSimulation(),
    )
    expected = "Device 2, round 0, phase 0, start: KeyError: 'no such label'"
    with pytest.raises(DeviceError, match=expected):
        next(rounds)


@pytest.mark.slow
def test_a_number_that_is_not_finite_is_named_where_it_first_appears():
    def lower(x, y, batch):
        return jnp.mean((y - x * batch) ** 2)

    def upper(x, y, batch):
        # Finite until x has moved below its start, in the first local step.
        return jnp.mean(jnp.sqrt(x - 1.0 + 1e-9) * batch) + jnp.sum(y**2)

    devices = one_example_devices([1.0, 1.0])
    rounds = run(
        BilevelProblem(upper, lower),
        ALGORITHM,
        devices,
        1.0,
        1.0,
        rounds=3,
        engine=DebugSimulation(),
    )
    expected = r"Device 0, round 0, phase 0, step 0: .*\.upper_direction is not finite"
    with pytest.raises(DeviceError, match=expected):
        list(rounds)


def test_the_phase_is_named_where_there_are_several():
    def upper(x, y, batch):
        return jnp.sum(y**2) + jnp.mean(jnp.sqrt(x) * batch)

    def lower(x, y, batch):
        return jnp.mean((y - batch) ** 2)

    devices = one_example_devices([1.0, 1.0])
    rounds = run(
        BilevelProblem(upper, lower),
        TwoExchanges(3.0),
        devices,
        1.0,
        1.0,
        rounds=3,
        engine=DebugSimulation(),
    )
    with pytest.raises(DeviceError, match="Device 0, round 0, phase 1, step 1"):
        list(rounds)


@pytest.mark.slow
def test_without_a_mistake_it_runs():
    (only,) = run(
        quadratic.problem(),
        ALGORITHM,
        InMemoryDevices(quadratic.devices(2, 3, 0.1)),
        np.zeros(quadratic.X_SIZE),
        np.zeros(quadratic.Y_SIZE),
        rounds=1,
        engine=DebugSimulation(),
    )
    assert only.participants.tolist() == [0, 1]
