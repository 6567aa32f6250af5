"""With one device, the federated methods equal known single-machine methods.

MRBO (Yang, Ji and Liang 2021) and SOBA (Dagréou, Ablin, Vaiter and Moreau 2022) are
implemented here in NumPy with the conventions of their papers and hand-written
derivatives of the quadratic. Only the samples come from the package.
"""

import jax
import numpy as np
import pytest

from fedbilevel import (
    CubeRootDecay,
    FedBiO,
    InMemoryDevices,
    LocalBSGVRM,
    NeumannSeries,
    run,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.data.examples import one_device
from fedbilevel.engines.protocol import Moment, device_key
from tests import quadratic
from tests.quadratic import RIDGE

pytestmark = pytest.mark.slow

ITERATIONS, BATCH, OPENING, SEED = 12, 2, 5, 3
HELD = quadratic.devices(1, per_device=9, noise=0.3)
X = np.linspace(-1.0, 1.0, quadratic.X_SIZE)
Y = np.linspace(1.0, 2.0, quadratic.Y_SIZE)


def drawn(draw, round_number, position):
    """Return the device's draws at a step of a round, as NumPy arrays."""
    data = one_device(InMemoryDevices(HELD).cohort(np.array([0])))
    key = device_key(jax.random.key(SEED), Moment(round_number, 0), 0)
    return jax.tree.map(np.asarray, draw(data, jax.random.fold_in(key, position)))


def iterates(algorithm):
    devices = InMemoryDevices(HELD)
    rounds = run(
        quadratic.problem(), algorithm, devices, X, Y, rounds=ITERATIONS, seed=SEED
    )
    return [result.server for result in rounds]


@pytest.mark.nightly
def test_local_bsgvrm_with_one_device_and_one_local_step_is_mrbo():
    series = NeumannSeries(terms=3, scale=0.15)
    c1, c2, gamma, lam, d, m = 2.0, 3.0, 0.3, 0.5, 0.4, 4.0
    algorithm = LocalBSGVRM(
        CubeRootDecay(scale=d, plateau=m),
        series,
        upper_rate=gamma,
        lower_rate=lam,
        upper_mixing=c1,
        lower_mixing=c2,
        batch_size=BATCH,
        initial_batch_size=OPENING,
    )

    def estimates(x, y, samples):
        # Its inverse-Hessian routine: r_{i−1} = r_i − η ∇²G r_i, then η Σ_i r_i.
        g_x = samples.upper.shift.mean(0) + RIDGE * x
        g_y = y - samples.upper.target.mean(0)
        r = [g_y]
        for batch in samples.curvature[::-1]:
            r.append(r[-1] - series.scale * batch.matrix.mean(0) @ r[-1])
        hyper = g_x + samples.cross.coupling.mean(0).T @ (series.scale * sum(r))
        lower = samples.lower
        inner = (
            lower.matrix.mean(0) @ y - lower.coupling.mean(0) @ x - lower.offset.mean(0)
        )
        return hyper, inner

    def sample(round_number, position, size):
        return drawn(
            lambda data, key: draw_samples(data, key, size, series.curvature_draws),
            round_number,
            position,
        )

    x, y = X, Y
    u, v = estimates(x, y, sample(0, 0, OPENING))
    for k, server in enumerate(iterates(algorithm)):
        eta = d / max(k + 2, m) ** (1 / 3)
        x_old, y_old = x, y
        x, y = x - gamma * eta * u, y - lam * eta * v
        batches = sample(k, 1, BATCH)
        (u_new, v_new), (u_old, v_old) = (
            estimates(x, y, batches),
            estimates(x_old, y_old, batches),
        )
        u = u_new + (1 - c1 * eta**2) * (u - u_old)
        v = v_new + (1 - c2 * eta**2) * (v - v_old)
        for value, other in zip(server[:4], (x, y, u, v), strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=1e-10)
    assert np.linalg.norm(x - X) > 1e-2


def test_fedbio_with_one_device_is_soba():
    rho, gamma = 0.06, 0.02
    algorithm = FedBiO(1.0, gamma, rho, rho, batch_size=BATCH)
    # SOBA names the inner variable z, the outer x, and its v is minus our adjoint.
    z, v, x = Y, np.zeros_like(Y), X
    for k, server in enumerate(iterates(algorithm)):
        upper, lower, cross, (curvature,) = drawn(
            lambda data, key: draw_samples(data, key, BATCH), k, 1
        )
        pull = lower.coupling.mean(0) @ x + lower.offset.mean(0)
        d_z = lower.matrix.mean(0) @ z - pull
        d_v = curvature.matrix.mean(0) @ v + (z - upper.target.mean(0))
        d_x = -cross.coupling.mean(0).T @ v + (upper.shift.mean(0) + RIDGE * x)
        z, v, x = z - rho * d_z, v - rho * d_v, x - gamma * d_x
        for value, other in zip(server[:3], (x, z, -v), strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=1e-10)
    assert np.linalg.norm(x - X) > 1e-2
