import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import InMemoryDevices, LocalExamples, OnDemandDevices
from fedbilevel.data.examples import StoredExamples, one_device


def rows(*values: float) -> np.ndarray:
    return np.array(values)


def test_draws_are_uniform_over_the_devices_own_rows():
    examples = StoredExamples(jnp.arange(10.0), jnp.array(4), jnp.array(5))
    (batch,) = examples.draw(jax.random.key(0), batch_size=50_000, draws=1)
    values, counts = np.unique(batch, return_counts=True)
    assert values.tolist() == [4, 5, 6, 7, 8]
    # Each count is 10,000 in expectation with a deviation of 89; 450 is 5 deviations.
    assert np.abs(counts - 10_000).max() < 450


@pytest.mark.slow
def test_batches_of_one_draw_are_independent():
    examples = StoredExamples(jnp.arange(2.0), jnp.array(0), jnp.array(2))
    first, second = examples.draw(jax.random.key(1), batch_size=50_000, draws=2)
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(50_000)


def test_ragged_devices_are_stored_without_padding():
    devices = InMemoryDevices(
        [LocalExamples(rows(1, 2), rows(3)), LocalExamples(rows(4), rows(5, 6, 7))]
    )
    assert devices.device_count == 2
    assert devices.upper_sizes.tolist() == [2, 1]
    cohort = devices.cohort(np.array([1, 0]))
    assert cohort.lower.arrays.tolist() == [3, 5, 6, 7]
    assert cohort.lower.offset.tolist() == [1, 0]
    assert one_device(cohort, 0).lower.size == 3


def test_sharing_stores_the_examples_once():
    devices = InMemoryDevices.sharing(LocalExamples(rows(1), rows(2, 3)), 1_000)
    cohort = devices.cohort(np.array([0, 999]))
    assert cohort.lower.arrays.shape == (2,)
    assert cohort.lower.size.tolist() == [2, 2]


def test_padding_of_loaded_devices_is_never_drawn():
    devices = OnDemandDevices(
        2, lambda device: LocalExamples(rows(1), rows(*[7] * (device + 1))), 1, 4
    )
    cohort = devices.cohort(np.array([0, 1]))
    assert cohort.lower.arrays.tolist() == [7, 0, 0, 0, 7, 7, 0, 0]
    for index in (0, 1):
        (batch,) = one_device(cohort, index).lower.draw(jax.random.key(0), 100, 1)
        assert (batch == 7).all()


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "at least one"),
        ([LocalExamples(rows(1), rows())], "Device 0 has no lower examples"),
        (
            [LocalExamples(rows(1), rows(1)), LocalExamples({"a": rows(1)}, rows(1))],
            "Device 1: upper examples have shapes and dtypes",
        ),
        ([LocalExamples((rows(1), rows(1, 2)), rows(1))], r"arrays of \[1, 2\] rows"),
    ],
)
def test_impossible_data_are_refused_with_the_device_named(devices, message):
    with pytest.raises(ValueError, match=message):
        InMemoryDevices(devices)


def test_a_device_beyond_its_capacity_is_named():
    devices = OnDemandDevices(9, lambda _: LocalExamples(rows(1), rows(1, 2)), 1, 1)
    with pytest.raises(ValueError, match="Device 4 has 2 lower examples"):
        devices.cohort(np.array([4]))
