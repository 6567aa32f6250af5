"""Runs of a problem of PyTorch: checkpoints, limits, other engines, mistakes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from fedbilevel import (
    Checkpoints,
    Clip,
    FedBiO,
    InMemoryDevices,
    Limits,
    LocalExamples,
    Run,
    Simulation,
    run,
    sweep,
    tune,
    with_transforms,
)
from fedbilevel.metrics import (
    diagnose,
    find_instabilities,
    largest_curvature,
    newton_reference,
)
from fedbilevel.torch import TensorDevices, TensorSimulation, bilevel_problem
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation
from tests.torch import tensors

pytestmark = pytest.mark.slow
ALGORITHM = FedBiO(0.05, batch_size=2)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    # JAX calls back on other threads, which have the global setting.
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def inputs(algorithm=ALGORITHM):
    return tensors.problem(), algorithm, tensors.devices(), *tensors.start()


@pytest.mark.parametrize("name", ["FedBiO", "two exchanges, private state"])
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    arguments = inputs(ALGORITHMS[name]())
    engine = TensorSimulation()
    *_, whole = run(*arguments, rounds=5, engine=engine)
    options = Checkpoints(tmp_path / "checkpoints", every=2)
    again = Run(*arguments, rounds=5, engine=engine)
    for number, _ in enumerate(again.start(options)):
        if number == 2:
            break
    rounds = list(again.resume(options))
    assert [each.number for each in rounds] == [3, 4]
    assert rounds[-1].costs == whole.costs
    for ours, other in zip(
        jax.tree.leaves(rounds[-1].state), jax.tree.leaves(whole.state), strict=True
    ):
        assert isinstance(ours, torch.Tensor)
        np.testing.assert_array_equal(ours, other)


def test_a_run_with_other_numbers_is_not_resumed(tmp_path):
    options = Checkpoints(tmp_path / "checkpoints", every=2)
    first = Run(*inputs(), rounds=2, engine=TensorSimulation())
    *_, _ = first.start(options)
    with pytest.raises(ValueError, match="x has other values"):
        replace(first, x=first.x + 1).resume(options)


@pytest.mark.parametrize(
    "limits", [Limits(norm=3.0), Limits(distance=1.1)], ids=["norm", "distance"]
)
def test_limits_exclude_the_devices_of_a_simulation(limits):
    settings: dict[str, Any] = {"rounds": 2, "limits": limits}
    (ours, _), (other, _) = (
        list(run(problem, ALGORITHM, *rest, **settings, engine=engine))
        for problem, rest, engine in (
            (tensors.problem(), inputs()[2:], TensorSimulation()),
            (
                quadratic.problem(),
                (federation.in_memory(), *federation.START),
                Simulation(),
            ),
        )
    )
    assert ours.reports[0].excluded.tolist() == other.reports[0].excluded.tolist()
    assert len(other.reports[0].excluded)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "algorithm", [ALGORITHM, with_transforms(ALGORITHM, Clip(1e-3))]
)
def test_engines_of_jax_call_pytorch_back(algorithm):
    devices = federation.in_memory()
    *_, ours = run(tensors.problem(), algorithm, devices, *federation.START, rounds=2)
    *_, other = run(
        quadratic.problem(), algorithm, devices, *federation.START, rounds=2
    )
    np.testing.assert_allclose(ours.x, other.x, rtol=0, atol=1e-12)


def test_arrays_become_tensors_whose_labels_are_long():
    seen = []

    def loss(x, y, batch):
        seen.append(batch.dtype)
        return torch.mean((y - x) ** 2) + 0.0 * torch.mean(batch.double())

    devices = InMemoryDevices([LocalExamples(*[np.arange(4, dtype=np.int32)] * 2)] * 2)
    problem = bilevel_problem(loss, loss)
    settings: dict[str, Any] = {
        "rounds": 1,
        "engine": TensorSimulation(vectorised=False),
    }
    *_, last = run(problem, ALGORITHM, devices, 1.0, 0.0, **settings)
    assert set(seen) == {torch.int64}
    assert last.x.dtype == torch.float64


def broken(x, y, batch):
    raise RuntimeError("shapes do not fit")


def number(x, y, batch):
    return 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": quadratic.problem()}, r"Pass fedbilevel.torch.bilevel_problem"),
        (
            {"problem": bilevel_problem(broken, broken)},
            r"upper_loss\(x, y, batch\) failed .* RuntimeError: shapes do not fit",
        ),
        (
            {"problem": bilevel_problem(number, broken)},
            "upper_loss returned a float. Return a tensor",
        ),
        (
            {"problem": bilevel_problem(lambda x, y, b: y, broken)},
            r"returned a tensor of shape \(4,\)",
        ),
        ({"x": torch.ones(3, dtype=torch.int64)}, "x has dtype torch.int64"),
        ({"y": torch.full((4,), torch.nan)}, "y is not finite at the start"),
        ({"engine": Simulation()}, "Pass engine=fedbilevel.torch.TensorSimulation"),
        (
            {"algorithm": with_transforms(ALGORITHM, Clip(1.0))},
            "TensorSimulation does not run transforms",
        ),
    ],
)
def test_mistakes_are_named_with_their_cure(changes, message):
    names = "problem", "algorithm", "devices", "x", "y"
    arguments = dict(zip(names, inputs(), strict=True)) | {"engine": TensorSimulation()}
    with pytest.raises((TypeError, ValueError), match=message):
        list(run(**{**arguments, **changes}, rounds=1))


def test_devices_need_an_example_for_each_loss():
    with pytest.raises(ValueError, match="Device 1: upper examples are empty"):
        TensorDevices(
            [
                LocalExamples(torch.ones(2), torch.ones(2)),
                LocalExamples(torch.ones(0), torch.ones(2)),
            ]
        )


COMPUTED_BY_JAX: dict[str, Any] = {
    "largest_curvature": largest_curvature,
    "newton_reference": lambda problem, devices, x, y: newton_reference(
        problem, devices
    ).hypergradient(x, y),
    "diagnose": lambda *inputs: diagnose(*inputs)[:4],
    "sweep": lambda *inputs: (
        sweep(
            Run(inputs[0], ALGORITHM, *inputs[1:], rounds=2),
            [ALGORITHM],
            seeds=[0],
            measure=lambda s: s.x,
        ).measurements
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name == "diagnose" else [])
        for name in COMPUTED_BY_JAX
    ],
)
def test_what_jax_computes_takes_problems_of_pytorch(name):
    inputs = tensors.arrays(), *federation.START
    values = [
        COMPUTED_BY_JAX[name](problem, *inputs)
        for problem in (tensors.problem(), quadratic.problem())
    ]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-8)


@pytest.mark.nightly  # by day, `sweep` above
def test_settings_of_a_problem_of_pytorch_are_tuned():
    algorithm = FedBiO(1.0, batch_size=2)
    results = [
        tune(
            Run(problem, algorithm, tensors.arrays(), *start, rounds=3),
            trials=4,
            seeds=[0],
        ).best
        for problem, start in (
            (tensors.problem(), tensors.start()),
            (quadratic.problem(), federation.START),
        )
    ]
    assert results[0].score == pytest.approx(results[1].score)


def test_instabilities_of_problems_of_pytorch_are_found():
    algorithm = FedBiO(2.0, batch_size=2)
    (found, *_), (expected, *_) = (
        find_instabilities(
            Run(problem, algorithm, tensors.arrays(), *federation.START, rounds=5),
            *federation.START,
            rounds=5,
        )
        for problem in (tensors.problem(), quadratic.problem())
    )
    assert found.setting == expected.setting
