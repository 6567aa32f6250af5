"""Sites whose problem is one of PyTorch, beside sites with the same one in JAX.

`test_flare_torch` is a rehearsal on NVIDIA FLARE, left to the night.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import (
    Clip,
    FedBiO,
    InMemoryDevices,
    Simulation,
    SiteRows,
    Weights,
    run,
    with_transforms,
)
from fedbilevel.federation import (
    REHEARSAL,
    Computation,
    EnrolmentTerms,
    InProcess,
    Site,
    enrol,
)
from fedbilevel.torch import TensorSimulation, bilevel_problem
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, in_tiers
from tests.engines.federation import START, WEIGHTS, held, trajectory
from tests.federation.sites import enrolled, federation
from tests.torch import tensors
from tests.waiting import HANG

pytestmark = pytest.mark.slow
BY_DAY = ("two exchanges, private state",)


def mixed_sites(algorithm):
    """Return sites, every second of which has the problem of PyTorch."""
    problems = quadratic.problem(), tensors.problem()
    return {
        f"site-{number}": Site(
            number,
            problems[number % 2],
            algorithm,
            examples,
            *START,
            rules=REHEARSAL,
        )
        for number, examples in enumerate(held())
    }


def states(rounds):
    for step in rounds:
        server = [np.ravel(leaf) for leaf in jax.tree.leaves(step.server)]
        yield np.concatenate(server)


@pytest.fixture
def double_precision_everywhere() -> Iterator[None]:
    """JAX calls back on other threads, which have the global setting."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@in_tiers(quick=(), check=BY_DAY)
def test_sites_of_both_libraries_follow_the_simulation(name):
    sites = mixed_sites(ALGORITHMS[name]())
    rounds = run(
        quadratic.problem(),
        ALGORITHMS[name](),
        enrolled(sites),
        *START,
        rounds=5,
        weights=WEIGHTS,
        engine=federation(sites),
    )
    expected = trajectory(name, Simulation(), rounds=5)
    for ours, other in zip(states(rounds), expected, strict=True):
        np.testing.assert_allclose(ours, other, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3


@in_tiers(quick=(), check=BY_DAY)
def test_sites_of_both_libraries_follow_levels_and_rows(name):
    """A site lacks a level, each level has weights, and x has a row for each site."""
    algorithm, examples = ALGORITHMS[name](), held()
    examples[0] = examples[0]._replace(upper=None)
    examples[2] = examples[2]._replace(lower=None)
    rows, y = np.linspace(-1, 1, 5 * quadratic.X_SIZE).reshape(5, -1), START[1]
    x = SiteRows(rows)
    problems = quadratic.problem(), tensors.problem()
    sites = {
        f"site-{number}": Site(
            number,
            problems[(number + 1) // 2 % 2],
            algorithm,
            local,
            x,
            y,
            form=held()[0],
            rules=REHEARSAL,
        )
        for number, local in enumerate(examples)
    }
    assert [site.enrolment.levels for site in sites.values()][:3] == [
        ("lower",),
        ("upper", "lower"),
        ("upper",),
    ]
    settings: dict[str, Any] = {
        "rounds": 3,
        "weights": Weights(lower=[3.0, 1.0, 1.0, 0.5, 2.0]),
    }
    ours, of_tensors, expected = (
        list(
            states(
                run(
                    problem,
                    algorithm,
                    devices,
                    x,
                    y,
                    engine=engine,
                    **settings,
                )
            )
        )
        for problem, devices, engine in (
            (quadratic.problem(), enrolled(sites), federation(sites)),
            (tensors.problem(), InMemoryDevices(examples), TensorSimulation()),
            (quadratic.problem(), InMemoryDevices(examples), Simulation()),
        )
    )
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(of_tensors, expected, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3


@pytest.mark.nightly
def test_sites_of_the_other_library_enrol_and_are_named(tmp_path):
    algorithm, form = FedBiO(0.05, batch_size=2), held()[0]
    sites = mixed_sites(algorithm)

    def named(problem, directory):
        result = enrol(
            InProcess(sites),
            list(sites),
            form,
            tmp_path / directory,
            computation=Computation.of(problem, algorithm, form, *START),
            terms=EnrolmentTerms(HANG, at_least=len(sites)),
        )
        assert not result.absent
        return sorted(result.warnings)

    (tmp_path / "jax").mkdir()
    (tmp_path / "torch").mkdir()
    assert named(quadratic.problem(), "jax") == sorted(sites)[1::2]
    assert named(tensors.problem(), "torch") == sorted(sites)[::2]


@pytest.mark.nightly
def test_another_loss_of_pytorch_has_another_digest():
    def steeper(x, y, batch):
        return 2 * tensors.lower_loss(x, y, batch)

    first, same, other = (
        Computation.of(problem, FedBiO(0.05), held()[0], *START).digest
        for problem in (
            tensors.problem(),
            tensors.problem(),
            bilevel_problem(tensors.upper_loss, steeper),
        )
    )
    assert first == same != other


@pytest.mark.nightly
def test_a_server_with_a_problem_of_pytorch_has_the_same_numbers():
    algorithm = FedBiO(0.05, batch_size=2)
    sites = mixed_sites(algorithm)
    of_jax, of_torch = (
        list(
            states(
                run(
                    problem,
                    algorithm,
                    enrolled(sites),
                    *START,
                    rounds=3,
                    engine=federation(sites),
                )
            )
        )
        for problem in (quadratic.problem(), tensors.problem())
    )
    np.testing.assert_array_equal(of_jax, of_torch)


@pytest.mark.nightly
def test_transforms_call_pytorch_from_jax(double_precision_everywhere):
    algorithm = with_transforms(FedBiO(0.05, batch_size=2), Clip(1e-3))
    sites = mixed_sites(algorithm)
    arguments = algorithm, enrolled(sites), *START
    *_, last = run(tensors.problem(), *arguments, rounds=3, engine=federation(sites))
    *_, simulated = run(
        quadratic.problem(), algorithm, tensors.arrays(), *START, rounds=3
    )
    np.testing.assert_allclose(last.x, simulated.x, rtol=0, atol=1e-9)
