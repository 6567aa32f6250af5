"""Mistakes with problems of PyTorch are refused with their cure, or do no harm."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedbilevel import (
    AutoFedBiO,
    Checkpoints,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    Run,
    predict_costs,
    run,
    sweep,
    tune,
    with_server_optimiser,
)
from fedbilevel.engines.fingerprint import describe, differences
from fedbilevel.engines.protocol import PhaseReference
from fedbilevel.experiments.custom_problem import custom_model
from fedbilevel.federation import REHEARSAL, Site
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.metrics import (
    diagnose,
    estimate_assumptions,
    largest_curvature,
)
from fedbilevel.metrics.suggestion import suggest
from fedbilevel.torch import (
    OnDemandTensors,
    SplitModule,
    TensorDevices,
    TensorSimulation,
    bilevel_problem,
)
from fedbilevel.torch.conversion import to_arrays
from fedbilevel.torch.device_work import TensorWork
from fedbilevel.torch.devices import as_arrays
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines import federation
from tests.torch import tensors

pytestmark = [pytest.mark.slow, pytest.mark.single_precision]
ROWS = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
LABELS = torch.tensor([0, 1, 0, 1, 1, 0])


def errors(model, x, y, batch):
    rows, labels = batch
    return nn.functional.cross_entropy(model(x, y, rows), labels, reduction="none")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def split() -> SplitModule:
    return SplitModule(network(), upper=["0"])


def problem_of(model):
    def lower_loss(x, y, batch):
        ridge = sum((value**2).sum() for value in y.values())
        return errors(model, x, y, batch).mean() + 0.1 * ridge

    return bilevel_problem(
        lambda x, y, batch: errors(model, x, y, batch).mean(), lower_loss
    )


def held(rows=ROWS, labels=LABELS):
    return LocalExamples((rows, labels), (rows, labels))


def train(problem, x, y, examples=None, vectorised=True, **options):
    devices = TensorDevices([examples or held()] * 2)
    settings: dict[str, Any] = {
        "rounds": 3,
        "engine": TensorSimulation(vectorised),
        **options,
    }
    *_, last = run(problem, FedBiO(0.1, batch_size=2), devices, x, y, **settings)
    return last


class Empty(Dataset):  # type: ignore[misc]
    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (held(labels=LABELS[:4]), r"Device 0: upper examples have tensors of \[4, 6\]"),
        (LocalExamples(ROWS[:0], ROWS), "Device 0: upper examples are empty"),
        (
            LocalExamples(Empty(), ROWS),
            "Device 0: upper examples cannot be .* no b",
        ),
        (LocalExamples(torch.tensor(1.0), ROWS), "upper examples have a scalar"),
        (LocalExamples({}, ROWS), "upper examples have no tensor"),
        (LocalExamples(np.array(["a", "b"]), ROWS), "cannot be read as tensors"),
    ],
)
def test_examples_without_a_row_for_each_are_refused(examples, message):
    with pytest.raises(ValueError, match=message):
        TensorDevices([examples])
    with pytest.raises(ValueError, match=message):
        OnDemandTensors(1, lambda device: examples).cohort(np.array([0]))


def test_devices_with_other_shapes_are_named():
    wide = LocalExamples(torch.ones(2, 3), ROWS)
    with pytest.raises(ValueError, match="Device 1: upper examples have shapes"):
        TensorDevices([LocalExamples(ROWS, ROWS), wide])


def test_reading_a_data_set_draws_no_global_random_number():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    TensorDevices([LocalExamples(TensorDataset(ROWS), TensorDataset(ROWS))])
    assert torch.rand(1) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("vectorised", [True, False])
def test_examples_and_modules_with_gradients_leave_no_graph(vectorised):
    encoder = nn.Linear(2, 2)
    model = split()

    def loss(x, y, batch):
        rows, labels = batch
        return errors(model, x, y, (encoder(rows), labels)).mean()

    examples = held(rows=ROWS.clone().requires_grad_())
    last = train(bilevel_problem(loss, loss), model.x, model.y, examples, vectorised)
    for value in jax.tree.leaves((last.x, last.y)):
        assert not value.requires_grad


def test_a_later_change_of_the_start_changes_no_run():
    model = split()
    expected = train(problem_of(model), model.x, model.y)
    x = {name: value.clone() for name, value in model.x.items()}
    devices = TensorDevices([held()] * 2)
    rounds = run(
        problem_of(model),
        FedBiO(0.1, batch_size=2),
        devices,
        x,
        model.y,
        rounds=3,
        engine=TensorSimulation(),
    )
    next(rounds)
    for value in x.values():
        value.zero_()
    *_, last = rounds
    for name, value in expected.x.items():
        torch.testing.assert_close(last.x[name], value, rtol=0, atol=0)


def test_derivatives_in_inference_mode_are_refused():
    problem = tensors.problem()
    x, y = tensors.start()
    batch = tensors.tensors(federation.held()[0]).lower
    with torch.inference_mode(), pytest.raises(RuntimeError, match="outside of it"):
        problem.lower_gradient(x, y, batch)


class Recomputed(nn.Module):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, rows):
        return checkpoint(self.inner, rows, use_reentrant=False)


def test_activation_checkpointing_is_refused():
    model = SplitModule(Recomputed(), upper=["inner.0"])
    with pytest.raises(ValueError, match="Activation checkpointing would compute"):
        train(problem_of(model), model.x, model.y, vectorised=False)


def beside(model):
    """Return a loss that calls the module itself."""
    return lambda x, y, batch: nn.functional.cross_entropy(
        model.module(batch[0]), batch[1]
    )


@pytest.mark.parametrize(
    ("upper", "lower", "message"),
    [
        (beside, None, "upper_loss has no derivative in x and y"),
        (None, beside, "lower_loss has no derivative in y"),
    ],
)
def test_losses_that_do_not_depend_on_their_arguments(upper, lower, message):
    model = split()
    right = problem_of(model)
    problem = bilevel_problem(
        upper(model) if upper else right.upper_loss,
        lower(model) if lower else right.lower_loss,
    )
    with pytest.raises(ValueError, match=message):
        train(problem, model.x, model.y)


def test_an_x_that_no_loss_reads():
    model = SplitModule(network())
    problem = bilevel_problem(
        lambda x, y, batch: errors(model, {}, y, batch).mean(),
        lambda x, y, batch: errors(model, {}, y, batch).mean(),
    )
    with pytest.raises(ValueError, match="No loss has a derivative in x"):
        train(problem, torch.zeros(2), model.y)


def test_a_random_loss_is_named():
    model = split()

    def noisy(x, y, batch):
        rows, labels = batch
        rows = rows + torch.randn_like(rows)
        return errors(model, x, y, (rows, labels)).mean()

    with pytest.raises(ValueError, match="upper_loss is random: on the same batch"):
        train(bilevel_problem(noisy, noisy), model.x, model.y)


def test_a_sum_in_double_precision_is_no_mean():
    rows = torch.ones(3, dtype=torch.float64)
    start = torch.tensor(1.0, dtype=torch.float64)
    problem = bilevel_problem(
        lambda x, y, batch: (x * y * batch).sum(),
        lambda x, y, batch: (y * batch - x).square().mean(),
    )
    with pytest.raises(ValueError, match="upper_loss is not a mean"):
        train(problem, start, start, LocalExamples(rows, rows))


def test_the_sum_of_weights_is_named():
    model = SplitModule(network())

    def loss(x, y, batch):
        rows, labels = batch
        scores = model({}, y, rows)
        return nn.functional.cross_entropy(scores, labels, weight=torch.exp(x))

    with pytest.raises(ValueError, match="not by the sum of the weights"):
        train(bilevel_problem(loss, loss), torch.tensor([0.0, 1.0]), model.y)


def test_dtypes_that_do_not_fit_are_shown_with_their_cure():
    model = split()
    with pytest.raises(ValueError, match=r"float64\[6, 2\], int64\[6\].*\.float\(\)"):
        train(problem_of(model), model.x, model.y, held(ROWS.double()))


def test_a_module_in_place_of_its_parameters():
    model = split()
    with pytest.raises(TypeError, match=r"y is a Sequential.*SplitModule\(module\)\.y"):
        train(problem_of(model), model.x, model.module)


def test_transformations_of_optax_are_refused():
    algorithm = with_server_optimiser(FedBiO(0.1), optax.sgd(0.1))
    inputs = tensors.problem(), algorithm, tensors.devices(), *tensors.start()
    with pytest.raises(TypeError, match=r"Use optax_optimiser\('adam'"):
        next(run(*inputs, rounds=1, engine=TensorSimulation()))


def test_names_of_parameters_are_checked():
    model = split()
    for x, y, message in (
        ({}, model.y, "x lacks the parameter '0.bias'"),
        (model.y, model.x, "x has the parameter '2.bias'"),
        (model.x, {**model.y, "3.bias": 0}, "y has the parameter '3.bias'"),
    ):
        with pytest.raises(ValueError, match=message):
            model(x, y, ROWS)
        with pytest.raises(ValueError, match=message):
            model.load(x, y)
    wrong = {**model.y, "2.bias": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"2\.bias has shape \[1\]"):
        model.load(model.x, wrong)


def test_a_tied_parameter_is_named_by_its_first_name():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    with pytest.raises(ValueError, match=r"1\.weight is tied to 0\.weight"):
        SplitModule(module, upper=["1.weight"])


def test_a_module_that_was_switched_is_refused():
    model = SplitModule(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval())
    model.module.train()
    with pytest.raises(ValueError, match=r"switched by train\(\) or eval\(\)"):
        model({}, model.y, ROWS)


def test_a_loop_over_parameters_has_the_same_order_in_a_run():
    model = split()
    assert list(model.y) == sorted(model.y)
    factors = torch.tensor([1.0, 3.0])

    def loss(x, y, batch):
        parts = [(v**2).sum() for v in y.values()]
        return errors(model, x, y, batch).mean() + (factors * torch.stack(parts)).sum()

    problem = bilevel_problem(loss, loss)
    batch = ROWS, LABELS
    gradient = problem.lower_gradient(model.x, model.y, batch)
    expected = torch.func.grad(loss, argnums=1)(model.x, model.y, batch)
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value)


def test_a_resumption_sees_another_constant_and_no_loaded_result():
    def problem_with(shift):
        module = network()
        module[0].bias.requires_grad_(False)
        with torch.no_grad():
            module[0].bias += shift
        model = SplitModule(module, upper=["0.weight"])
        return model, problem_of(model)

    model, problem = problem_with(0.0)
    _, changed = problem_with(1.0)
    before = describe(problem)
    model.load(model.x, {name: value + 1 for name, value in model.y.items()})
    assert differences(before, describe(problem)) == []
    assert differences(before, describe(changed))


def of_tensors(problem: Any, devices: Any, x: Any, y: Any) -> Run:
    algorithm, engine = FedBiO(0.1), TensorSimulation()
    return Run(problem, algorithm, devices, x, y, rounds=2, engine=engine)


def test_a_state_of_whole_numbers_is_resumed(tmp_path):
    algorithm = ALGORITHMS["FedNest"]()
    inputs = tensors.problem(), algorithm, tensors.devices(), *tensors.start()
    options = Checkpoints(tmp_path / "checkpoints", every=1)
    first = Run(*inputs, rounds=2, engine=TensorSimulation(vectorised=False))
    list(first.start(options))
    *_, last = replace(first, rounds=4).resume(options)
    assert last.number == 3


def arrays(examples=None) -> InMemoryDevices:
    rows = LocalExamples(*jax.tree.map(np.asarray, examples or held()))
    return InMemoryDevices([rows, rows])


@pytest.mark.parametrize(
    "call",
    [
        lambda p, d, x, y: diagnose(p, d, x, y),
        lambda p, d, x, y: suggest(p, d, x, y, rounds=9, engine=TensorSimulation()),
        lambda p, d, x, y: estimate_assumptions(p, d, x, y),
        lambda *inputs: predict_costs(of_tensors(*inputs)),
        lambda *inputs: tune(of_tensors(*inputs)),
        lambda *inputs: sweep(
            of_tensors(*inputs), [FedBiO(0.1)], seeds=[0], measure=lambda s: s.x
        ),
    ],
)
def test_what_pytorch_does_not_compute_is_refused_with_a_cure(call):
    model = split()
    with pytest.raises(TypeError, match=r"Omit engine|Write them with|jax_enable_x64"):
        call(problem_of(model), arrays(), model.x, model.y)


def test_metrics_of_tensors_are_refused_with_a_cure():
    model = split()
    devices = TensorDevices([held()] * 2)
    with pytest.raises(TypeError, match="as arrays of NumPy in InMemoryDevices"):
        largest_curvature(problem_of(model), devices, model.x, model.y)


@pytest.mark.nightly
def test_single_precision_has_the_numbers_of_jax():
    single = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float32), (federation.held(), federation.START)
    )
    examples, (x, y) = single
    examples = [LocalExamples(*each) for each in examples]
    devices = InMemoryDevices(examples)
    algorithm = AutoFedBiO(4, batch_size=2)
    with jax.numpy_rank_promotion("allow"):
        *_, expected = run(quadratic.problem(), algorithm, devices, x, y, rounds=4)
    *_, last = run(
        tensors.problem(), algorithm, devices, x, y, rounds=4, engine=TensorSimulation()
    )
    np.testing.assert_allclose(last.y, expected.y, rtol=0, atol=2e-5)
    np.testing.assert_allclose(last.x, expected.x, rtol=0, atol=2e-5)


def test_a_site_takes_a_loader_and_examples_in_double_precision():
    model = split()
    loader = DataLoader(TensorDataset(ROWS.double(), LABELS), batch_size=4)
    examples = LocalExamples(loader, (ROWS.double().numpy(), LABELS.numpy()))
    algorithm = FedBiO(0.1, batch_size=2)
    problem, x, y = problem_of(model), model.x, model.y
    site = Site(0, problem, algorithm, examples, x, y, rules=REHEARSAL)
    assert site.enrolment.upper_size == 6
    work = TensorWork(problem, algorithm, as_arrays(examples))
    server, private = algorithm.init(problem, x, y)
    phase = PhaseReference(False, 0)
    downlink = to_arrays(phase.of(algorithm, problem).broadcast(server))
    result = work.compute(phase, downlink, private, HostKey.of(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(result.upload.update)} == {
        np.dtype(np.float32)
    }


def test_device_work_takes_messages_in_bfloat16():
    half = {"torch.bfloat16"}

    def loss(x, y, batch):
        half.add(str(x.dtype))
        return torch.mean((y * batch - x) ** 2)

    problem, algorithm = bilevel_problem(loss, loss), FedBiO(0.1)
    rows = np.ones(4, jnp.bfloat16)
    work = TensorWork(problem, algorithm, LocalExamples(rows, rows))
    server, private = algorithm.init(problem, rows[0], rows[0])
    phase = PhaseReference(False, 0)
    downlink = phase.of(algorithm, problem).broadcast(server)
    result = work.compute(phase, downlink, private, HostKey.of(0))
    assert half == {"torch.bfloat16"}
    assert jax.tree.leaves(result.upload.update)[0].dtype == jnp.bfloat16


def test_a_file_with_tensors_gives_arrays(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    model = custom_model(tmp_path / "mine.py")
    assert isinstance(model.x, np.ndarray)
    assert isinstance(model.form.upper, np.ndarray)


FILE = """
import torch
from fedbilevel import LocalExamples
from fedbilevel.problems import Model
from fedbilevel.torch import bilevel_problem

def loss(x, y, batch):
    return torch.mean((y * batch - x) ** 2)

def model():
    row = torch.zeros(1)
    start = torch.tensor(1.0), torch.tensor(0.0)
    return Model(bilevel_problem(loss, loss), *start, {}, LocalExamples(row, row))
"""
