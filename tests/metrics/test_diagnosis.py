"""`diagnose` against closed forms, most of them ill-conditioned."""

import csv
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples, OnDemandDevices
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Federation,
    Site,
)
from fedbilevel.federation.in_process import InProcess
from fedbilevel.metrics import (
    Diagnosis,
    DiagnosisProgress,
    ObstacleCause,
    Stage,
    Survey,
    Verdict,
    diagnose,
)
from fedbilevel.problems import quadratic_task, random_quadratic
from tests import quadratic
from tests.algorithms.table import at_night
from tests.quadratic import Mean
from tests.waiting import HANG

pytestmark = pytest.mark.slow

X, Y = np.full(quadratic.X_SIZE, 0.5), np.zeros(quadratic.Y_SIZE)
SIZE = 12


def scattered(devices, per_device, between, within, seed=5):
    """Return devices that differ by `between`, and examples by `within`."""
    generator = np.random.default_rng(seed)
    held = []
    for _ in range(devices):
        centre = quadratic.examples(generator, 1, between)
        noise = quadratic.examples(generator, per_device, within)
        plain = quadratic.examples(generator, 1, 0.0)
        held.append(
            type(centre)(
                *(
                    type(level)(
                        *(c + n - p for c, n, p in zip(level, noisy, base, strict=True))
                    )
                    for level, noisy, base in zip(centre, noise, plain, strict=True)
                )
            )
        )
    return held


def true_distance(held, weights=None) -> float:
    """Return the distance by dense solves, the devices weighted."""
    shares = np.ones(len(held)) if weights is None else np.asarray(weights)
    shares = shares / shares.sum()
    means = [Mean.of([device]) for device in held]
    whole = Mean(
        *(np.tensordot(shares, np.stack(part), 1) for part in zip(*means, strict=True))
    )
    y = whole.lower_solution(X)
    local = shares @ np.stack([mean.hypergradient(X, y) for mean in means])
    hypergradient = whole.hypergradient(X)
    indirect = whole.shift + quadratic.RIDGE * X - hypergradient
    size = max(np.linalg.norm(hypergradient), np.linalg.norm(indirect))
    return float(np.linalg.norm(local - hypergradient) / size)


def upper_loss(x, y, batch):
    return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) / 2


def lower_loss(x, y, batch):
    matrix, coupling = batch
    curved = jnp.einsum("i,bij,j->b", y, matrix, y) / 2
    return jnp.mean(curved - jnp.einsum("i,bij,j->b", y, coupling, x))


CONDITIONED = BilevelProblem(upper_loss, lower_loss)


def conditioned(matrices, couplings, targets, x) -> dict[str, Any]:
    """Return the arguments of a diagnosis, of one shape: compiled once for all tests.

    Two devices get a third that is absent; a y of fewer than `SIZE` entries gets more
    entries that x and f do not affect.
    """
    missing = SIZE - len(targets[0])
    held = [
        LocalExamples(
            np.pad(target, (0, missing))[None],
            (
                block_diag(matrix, np.eye(missing))[None],
                np.pad(coupling, ((0, missing), (0, len(X) - coupling.shape[1])))[None],
            ),
        )
        for matrix, coupling, target in zip(matrices, couplings, targets, strict=True)
    ]
    return {
        "problem": CONDITIONED,
        "devices": InMemoryDevices([*held, held[0]][:3]),
        "x": np.pad(x, (0, len(X) - len(x))),
        "y": np.zeros(SIZE),
        "weights": [1.0, 1.0, float(len(held) == 3)],
    }


def closed_form(matrices, couplings, targets, x) -> float:
    matrix, coupling = np.mean(matrices, axis=0), np.mean(couplings, axis=0)
    y = np.linalg.solve(matrix, coupling @ x)
    rights = y - np.asarray(targets)
    ours = -coupling.T @ np.linalg.solve(matrix, rights.mean(axis=0))
    local = -np.mean(
        [
            c.T @ np.linalg.solve(m, right)
            for m, c, right in zip(matrices, couplings, rights, strict=True)
        ],
        axis=0,
    )
    return float(np.linalg.norm(local - ours) / np.linalg.norm(ours))


def ill(generator, condition):
    basis, _ = np.linalg.qr(generator.normal(size=(SIZE, SIZE)))
    return (basis * np.geomspace(1 / condition, 1, SIZE)) @ basis.T


def test_the_distance_is_that_of_the_closed_form_and_progress_is_reported():
    held = scattered(4, per_device=30, between=0.6, within=0.2)
    seen: list[DiagnosisProgress] = []
    actual = diagnose(
        quadratic.problem(), InMemoryDevices(held), X, Y, report=seen.append
    )
    assert true_distance(held) > 0.2
    np.testing.assert_allclose(actual.distance, true_distance(held), rtol=1e-7)
    assert actual.low <= true_distance(held) <= actual.high
    assert actual.high - actual.low < 1e-4
    assert actual.verdict is Verdict.HETEROGENEOUS
    assert "FedBiO" in str(actual)
    assert list(dict.fromkeys(progress.stage for progress in seen)) == list(Stage)
    exchanges = [progress.exchanges for progress in seen]
    assert exchanges == sorted(exchanges)
    assert exchanges[-1] == actual.costs.exchanges
    last = {progress.stage: progress for progress in seen}
    assert last[Stage.LOWER].residual <= last[Stage.LOWER].goal
    assert last[Stage.LOCAL].residual <= last[Stage.LOCAL].goal


def test_a_homogeneous_federation_passes():
    (held,) = scattered(1, per_device=30, between=0.0, within=0.2)
    actual = diagnose(quadratic.problem(), InMemoryDevices([held] * 4), X, Y)
    assert actual.verdict is Verdict.HOMOGENEOUS
    assert actual.high < 1e-5
    assert "LocalBSGVRM" in str(actual)


@pytest.mark.nightly
def test_examples_may_be_ragged_weighted_loaded_on_demand_and_single_precision():
    held = [
        scattered(1, size, 0.5, 0.2, seed=size)[0]
        for size in (3, 70, 128)  # less than a batch, more than one, and two
    ]
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), held)
    stored = jax.tree.map(lambda leaf: leaf.astype(np.float64), single)
    weights = [1.0, 3.0, 0.5]
    with jax.enable_x64(False):
        devices = OnDemandDevices(3, single.__getitem__, 128, 128)
        actual = diagnose(quadratic.problem(), devices, X, Y, weights=weights)
    truth = true_distance(stored, weights)
    np.testing.assert_allclose(actual.distance, truth, rtol=1e-7)


@pytest.mark.nightly
def test_short_series_agree_where_nothing_is_homogeneous():
    # Curvatures (1, 0.001) and (1, 0.02): 20 terms of a series with scale 0.5 gave
    # 0.014 with an interval of no width for a true 2.85.
    matrices = [np.diag([1.0, 0.001]), np.diag([1.0, 0.02])]
    couplings, targets = [np.eye(2)] * 2, [np.array([1.0, 1.0]), np.array([-1.0, 2.0])]
    parts = matrices, couplings, targets, np.zeros(2)
    truth = closed_form(*parts)
    np.testing.assert_allclose(truth, 2.85, atol=5e-3)
    actual = diagnose(**conditioned(*parts))
    np.testing.assert_allclose(actual.distance, truth, rtol=1e-9)
    assert actual.verdict is Verdict.HETEROGENEOUS
    assert max(actual.residual, actual.local_residual) < 1e-8


@pytest.mark.parametrize(
    ("condition", "federation"),
    [
        (1e5, "alike"),
        (1e5, "apart"),
        pytest.param(1e3, "alike", marks=pytest.mark.nightly),
        pytest.param(1e5, "scaled", marks=pytest.mark.nightly),
    ],
)
def test_badly_conditioned_devices_are_told_apart(condition, federation):
    generator = np.random.default_rng(3)
    base, coupling = ill(generator, condition), generator.normal(size=(SIZE, 3))
    targets, x = generator.normal(size=(3, SIZE)), generator.normal(size=3)
    matrices, verdict = {
        "alike": ([base] * 3, Verdict.HOMOGENEOUS),
        "scaled": ([0.9 * base, base, 1.1 * base], None),
        "apart": ([ill(generator, condition) for _ in range(3)], Verdict.HETEROGENEOUS),
    }[federation]
    parts = matrices, [coupling] * 3, targets, x
    actual, truth = diagnose(**conditioned(*parts)), closed_form(*parts)
    assert actual.low <= truth + 1e-9
    assert truth <= actual.high
    assert actual.high - actual.low < 0.01 * max(0.1, truth)
    close = truth <= actual.tolerance
    assert actual.verdict is (Verdict.HOMOGENEOUS if close else Verdict.HETEROGENEOUS)
    assert verdict in (actual.verdict, None)


@pytest.mark.parametrize("curvature", [1e-10, *at_night(1e-6)])
def test_curvature_that_the_right_side_hardly_has_a_part_in_counts(curvature):
    # A residual of 1e-8 would hide the one direction in which devices differ.
    matrices = [np.diag(np.linspace(0.5, 1.0, SIZE)) for _ in range(2)]
    for matrix, factor in zip(matrices, (1.0, 3.0), strict=True):
        matrix[0, 0] = factor * curvature
    generator = np.random.default_rng(4)
    coupling, target = generator.normal(size=(SIZE, 3)), generator.normal(size=SIZE)
    target[0] = 3 * curvature
    parts = matrices, [coupling] * 2, [target] * 2, np.zeros(3)
    actual, truth = diagnose(**conditioned(*parts)), closed_form(*parts)
    np.testing.assert_allclose(actual.distance, truth, rtol=1e-3)
    assert actual.low < truth < actual.high


@pytest.mark.parametrize("side", [-1.0, *at_night(1.0)])
@pytest.mark.parametrize("curvature", [1e-10, *at_night(1e-6)])
def test_curvature_beside_an_eigenvector_of_signs_counts(curvature, side):
    along, across = np.array([1.0, side]), np.array([1.0, -side])

    def matrix(small):
        return np.outer(along, along) / 2 + small * np.outer(across, across) / 2

    matrices = [matrix(curvature), matrix(20 * curvature)]
    targets = [-(along + 1e-9 * across), -(along - 5e-10 * across)]
    parts = matrices, [np.eye(2)] * 2, targets, np.zeros(2)
    actual, truth = diagnose(**conditioned(*parts)), closed_form(*parts)
    assert actual.low <= truth <= actual.high
    indefinite = [matrix(-curvature), matrix(20 * curvature)]
    actual = diagnose(**conditioned(indefinite, *parts[1:]))
    assert actual.verdict is Verdict.UNCLEAR


@pytest.mark.parametrize(
    ("curvature", "start", "target"),
    [
        (1e-6, 1e4, (-100.0, 0.0)),
        (1e-4, 1e6, (-100.0, 0.0)),
        (1e-3, 1e7, (-100.0, 0.0)),
        (1e-10, 0.0, (1.0, 0.0)),
        (1e-10, 1e8, (-100.0, 0.0)),
        (1e-10, 1.0, (1.0, 1.0)),
    ],
)
def test_the_error_of_the_lower_solution_is_part_of_the_limits(
    curvature, start, target
):
    # A lower solve that ended when ∇y g was small relative to its largest value
    # gave 0.0033 and HOMOGENEOUS for a true 0.33.
    matrices = [np.diag([1.0, curvature]), np.diag([1.0, 3 * curvature])]
    x = np.array([2.0, 2 * curvature])
    parts = matrices, [np.eye(2)] * 2, [np.array(target)] * 2, x
    what = conditioned(*parts)
    what["y"][0] = start
    actual, truth = diagnose(**what), closed_form(*parts)
    assert actual.high >= truth - 1e-9
    assert actual.low <= truth + 1e-9
    if target[1] == 0:
        np.testing.assert_allclose(actual.distance, truth, rtol=1e-3)
        assert actual.verdict is Verdict.HETEROGENEOUS
    else:
        # ∇y f vanishes in the second entry, up to the error of y.
        assert actual.verdict is Verdict.UNCLEAR
        assert actual.obstacle is not None
        assert actual.obstacle.cause is ObstacleCause.REMAINDER
        assert actual.obstacle.stage is Stage.LOWER
        assert "The error of y*(x) is too large" in str(actual)


def test_too_few_products_leave_it_unclear_and_enough_are_named():
    # The mean of the two has 6 curvatures, each device 12 that are farther apart.
    curvatures = np.geomspace(1e-4, 1, SIZE)
    matrices = [np.diag(curvatures), np.diag(curvatures[::-1])]
    coupling = np.random.default_rng(3).normal(size=(SIZE, 3))
    # x = 0, so that y*(x) = 0 is found at once.
    what = conditioned(matrices, [coupling] * 2, np.ones((2, SIZE)), np.zeros(3))
    for products, stage in ((3, Stage.CURVATURE), (8, Stage.LOCAL)):
        actual = diagnose(**what, survey=Survey(products=products))
        assert actual.verdict is Verdict.UNCLEAR
        assert actual.obstacle is not None
        needed = actual.obstacle.needed
        assert actual.obstacle.cause is ObstacleCause.NOT_CONVERGED
        assert actual.obstacle.stage is stage
        assert (actual.low, actual.high) == (0, np.inf)
        assert needed is not None
        assert needed > products
        assert f"about {needed} Hessian products" in str(actual)
    assert needed is not None
    enough = Survey(products=needed)
    assert diagnose(**what, survey=enough).verdict is Verdict.HETEROGENEOUS


@pytest.mark.parametrize(
    ("curvatures", "stage"),
    [
        ((-0.5, -0.5), Stage.CURVATURE),  # no device has a minimum
        ((1.0, -0.5), Stage.LOCAL),  # their mean has one
    ],
)
def test_negative_curvature_is_named(curvatures, stage):
    matrices = [np.diag([1.0, 2.0, item]) for item in curvatures]
    # ∇y f has no component in the direction of negative curvature.
    targets = np.array([[1.0, 1.0, 0.0]] * 2)
    couplings = [np.ones((3, 1))] * 2
    actual = diagnose(**conditioned(matrices, couplings, targets, np.zeros(1)))
    assert actual.verdict is Verdict.UNCLEAR
    assert actual.obstacle is not None
    assert actual.obstacle.curvature is not None
    assert actual.obstacle.cause is ObstacleCause.NEGATIVE_CURVATURE
    assert actual.obstacle.stage is stage
    assert -0.5 <= actual.obstacle.curvature < 0
    assert "curvature along a direction is -0" in str(actual)
    assert "Add a penalty on y to lower_loss" in str(actual)
    assert ("50% of the devices" in str(actual)) == (stage is Stage.LOCAL)


@pytest.mark.nightly
def test_the_lower_problem_is_solved_where_it_is_not_quadratic():
    # g = log(e^y + e^−y) + h y² / 2 − x y: from y = 30 a full Newton step overshoots.
    def softened(x, y, batch):
        return jnp.mean(jnp.logaddexp(y, -y) + batch * y**2 / 2 - x * y)

    def squared(x, y, batch):
        return jnp.mean((y - batch) ** 2) / 2

    held = [
        LocalExamples(np.array([aim]), np.array([curvature]))
        for aim, curvature in ((0.0, 0.01), (1.0, 0.2))
    ]
    problem = BilevelProblem(squared, softened)
    actual = diagnose(problem, InMemoryDevices(held), 0.9, 30.0)
    low, high = 0.0, 30.0
    for _ in range(200):
        y = (low + high) / 2
        low, high = (y, high) if np.tanh(y) + 0.105 * y < 0.9 else (low, y)
    bend = 1 - np.tanh(y) ** 2
    ours = (y - 0.5) / (bend + 0.105)
    local = np.mean([y / (bend + 0.01), (y - 1.0) / (bend + 0.2)])
    np.testing.assert_allclose(actual.distance, abs(local - ours) / ours, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("amount", [0.6, 0.8])
def test_the_benchmark_quadratic_is_measured_rightly(amount):
    # Short series gave 0.95 for a true 1.86 and 2.1 for 61.9.
    truth = random_quadratic(devices=8, heterogeneity=amount)
    task = quadratic_task(truth, examples=5, noise=0.3)
    actual = diagnose(task.problem, task.devices, task.x, task.y)
    x = np.asarray(task.x)
    ours = truth.hypergradient(x)
    local = truth.mean_local_hypergradient(x, truth.lower_solution(x))
    indirect = truth.shifts.mean(0) + truth.ridge * x - ours
    size = max(np.linalg.norm(ours), np.linalg.norm(indirect))
    exact = np.linalg.norm(local - ours) / size
    np.testing.assert_allclose(actual.distance, exact, rtol=1e-7)
    assert actual.low <= exact <= actual.high


def test_the_table_of_the_documentation_is_right():
    table = Path(__file__).parents[2] / "docs" / "results" / "diagnosis.csv"
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["heterogeneity"] for row in rows][-2:] == ["0.6", "0.8"]
    for row in rows:
        exact, distance = float(row["exact"]), float(row["distance"])
        np.testing.assert_allclose(distance, exact, rtol=1e-3, atol=1e-9)
        right = Verdict.HOMOGENEOUS if exact <= 0.1 else Verdict.HETEROGENEOUS
        assert row["verdict"] == right.name


@pytest.mark.nightly
def test_a_federation_answers_over_exchanges():
    held = scattered(2, per_device=5, between=0.6, within=0.2)
    problem, survey = quadratic.problem(), Survey(batch_size=4)
    sites = {
        name: Site(number, problem, survey, held[number], X, Y, rules=REHEARSAL)
        for number, name in enumerate(["north", "south"])
    }
    enrolled = EnrolledDevices(
        {name: site.enrolment for name, site in sites.items()}, form=held[0]
    )
    federation = Federation(InProcess(sites), enrolled, run="diagnosis", timeout=HANG)
    actual = diagnose(problem, enrolled, X, Y, survey=survey, engine=federation)
    np.testing.assert_allclose(actual.distance, true_distance(held), rtol=1e-7)


def test_mistakes_are_told():
    held = scattered(4, per_device=30, between=0.6, within=0.2)
    devices = InMemoryDevices(held)
    with pytest.raises(ValueError, match=r"tolerance is 0\.0"):
        diagnose(quadratic.problem(), devices, X, Y, tolerance=0.0)
    with pytest.raises(ValueError, match=r"products is 0, .* at least 1"):
        Survey(products=0)
    with pytest.raises(ValueError, match=r"residual is 2\.0, .* above 0 and below 1"):
        Survey(residual=2.0)
    held[1].lower.matrix[5] = np.nan
    with pytest.raises(ArithmeticError, match="upload of device 1 is not finite"):
        diagnose(quadratic.problem(), InMemoryDevices(held), X, Y)


def test_a_point_where_the_hypergradient_vanishes_is_refused():
    what = conditioned([np.eye(3)] * 2, [np.zeros((3, 1))] * 2, np.ones((2, 3)), [1.0])
    with pytest.raises(ArithmeticError, match="vanishes"):
        diagnose(**what)


def test_bounds_are_printed_only_if_they_differ_when_rounded():
    assert "by 45 % (tolerance 10 %)." in str(Diagnosis(0.45, 0.45, 0.4500001, 0.1))
    text = str(Diagnosis(0.45, 0.44, 0.462, 0.1))
    assert "by 45 %, at least 44 % and at most 46.2 % (tolerance 10 %)." in text


def test_limits_that_contain_the_tolerance_are_no_verdict():
    assert Diagnosis(0.1, 0.05, 0.15, 0.1).verdict is Verdict.UNCLEAR
