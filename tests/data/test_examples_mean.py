"""The mean over all examples of a device, by batches of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.costs import device_costs
from fedbilevel.metrics.survey import Question, Survey
from tests import quadratic

ROWS = np.random.default_rng(0).normal(size=(30, 2))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_every_example_counts_once(batch_size):
    offsets, sizes = np.array([0, 8, 20]), np.array([8, 3, 10])

    @jax.vmap
    def mean(offset, size):
        examples = StoredExamples(jnp.asarray(ROWS), offset, size)
        return examples.mean(
            lambda batch: {"sum": jnp.mean(batch, 0), "log": jnp.mean(batch**2)},
            batch_size,
        )

    means = mean(offsets, sizes)
    for k, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        rows = ROWS[offset : offset + size]
        np.testing.assert_allclose(means["sum"][k], rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(means["log"][k], (rows**2).mean(), rtol=1e-12)


def test_rows_of_other_devices_do_not_matter():
    rows = jnp.array([1.0, 2.0, 3.0, jnp.nan])
    examples = StoredExamples(rows, jnp.array(0), jnp.array(3))
    assert float(examples.mean(jnp.mean, batch_size=2)) == 2.0


def test_a_mean_is_counted_as_all_examples():
    held = quadratic.examples(np.random.default_rng(0), 7, 0.1)
    data = StoredData(
        *(
            StoredExamples(jax.tree.map(jnp.asarray, part), jnp.array(0), jnp.array(7))
            for part in held
        )
    )
    survey, problem = Survey(batch_size=4), quadratic.problem()
    x, y = jnp.zeros(quadratic.X_SIZE), jnp.zeros(quadratic.Y_SIZE)
    server, private = survey.init(problem, x, y)
    phase = survey.phases(problem)[Question.UPPER]
    costs = device_costs(phase, server, private, data, jax.random.key(0))
    assert (costs.upper_samples, costs.lower_samples) == (7, 0)
