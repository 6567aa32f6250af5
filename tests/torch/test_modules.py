"""Modules of PyTorch as x and y, and data from PyTorch's data sets and loaders."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedbilevel import FedBiO, InMemoryDevices, LocalExamples, OnDemandDevices, run
from fedbilevel.torch import (
    OnDemandTensors,
    SplitModule,
    TensorDevices,
    TensorSimulation,
    bilevel_problem,
)
from fedbilevel.torch.conversion import to_tensors

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Scaled(nn.Module):  # type: ignore[misc]
    """A layer with a frozen parameter, and a buffer that a call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("calls", torch.tensor(0.0))
        self.shift = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, rows):
        self.calls += 1
        return self.scale * rows + self.shift


def network():
    torch.manual_seed(0)
    layers = OrderedDict(
        backbone=nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(1, 4), nn.Tanh()),
        fixed=Scaled(),
        head=nn.Linear(4, 2),
    )
    return nn.Sequential(layers)


def problem_of(model):
    def upper_loss(x, y, batch):
        rows, labels = batch
        return nn.functional.cross_entropy(model(x, y, rows), labels)

    def lower_loss(x, y, batch):
        penalty = sum(torch.sum(value**2) for value in y.values())
        return upper_loss(x, y, batch) + 0.05 * penalty

    return bilevel_problem(upper_loss, lower_loss)


def data(seed=0):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(12, 3))
    return torch.from_numpy(rows), torch.from_numpy((rows[:, 0] > 0).astype(np.int64))


ROWS = [LocalExamples(data(number), data(number + 9)) for number in range(3)]


def tuned(devices, vectorised=True):
    model = SplitModule(network(), upper=["backbone"], lower=["head"])
    *_, last = run(
        problem_of(model),
        FedBiO(0.3, local_steps=2, batch_size=4),
        devices,
        model.x,
        model.y,
        rounds=4,
        engine=TensorSimulation(vectorised),
    )
    return model, last


def test_a_split_module_is_the_module():
    module, (rows, _) = network(), data()
    model = SplitModule(module, upper=["backbone"])
    expected = module(rows)
    assert sorted(model.y) == ["head.bias", "head.weight"]
    torch.testing.assert_close(model(model.x, model.y, rows), expected)
    assert float(module.fixed.calls) == 1.0  # our calls changed a copy


def test_what_was_tuned_loads_into_the_module_and_its_state_dict():
    model, last = tuned(TensorDevices(ROWS))
    rows, labels = data()
    before = nn.functional.cross_entropy(model.module(rows), labels)
    frozen = model.module.fixed.shift.clone()
    module = model.load(last.x, last.y)
    other = network()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other(rows), model(last.x, last.y, rows))
    assert nn.functional.cross_entropy(other(rows), labels) < 0.9 * before
    assert other.fixed.shift == frozen


def test_devices_in_turn_and_at_once_agree_for_a_module():
    _, at_once = tuned(TensorDevices(ROWS))
    _, in_turn = tuned(TensorDevices(ROWS), vectorised=False)
    for name, value in at_once.x.items():
        torch.testing.assert_close(value, in_turn.x[name], rtol=0, atol=1e-12)


class Endless(IterableDataset):  # type: ignore[misc]
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return zip(*self.rows, strict=True)


@pytest.mark.parametrize(
    "as_source",
    [
        lambda rows: TensorDataset(*rows),
        lambda rows: DataLoader(TensorDataset(*rows), batch_size=5),
        Endless,
        lambda rows: [np.asarray(column) for column in rows],
    ],
    ids=["Dataset", "DataLoader", "IterableDataset", "arrays"],
)
def test_data_sets_and_loaders_give_the_numbers_of_tensors(as_source):
    _, expected = tuned(TensorDevices(ROWS))
    devices = [LocalExamples(*map(as_source, levels)) for levels in ROWS]
    for given in (TensorDevices(devices), OnDemandTensors(3, devices.__getitem__)):
        _, last = tuned(given)
        for name, value in expected.x.items():
            torch.testing.assert_close(last.x[name], value, rtol=0, atol=0)


def test_devices_of_arrays_are_read_as_tensors():
    arrays = [
        LocalExamples(*[tuple(np.asarray(c) for c in level) for level in levels])
        for levels in ROWS
    ]
    _, expected = tuned(TensorDevices(ROWS))
    for devices in (
        InMemoryDevices(arrays),
        OnDemandDevices(3, arrays.__getitem__, 12, 12),
    ):
        _, last = tuned(devices)
        for name, value in expected.x.items():
            torch.testing.assert_close(last.x[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("module", "names", "message"),
    [
        (nn.BatchNorm1d(3), {}, "normalises by statistics of the batch"),
        (
            nn.BatchNorm1d(3, track_running_stats=False).eval(),
            {},
            "normalises by statistics of the batch",
        ),
        (nn.MultiheadAttention(4, 1, dropout=0.5), {}, "is random"),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.5), {}, "is random"),
        (nn.Sequential(nn.Linear(1, 1), nn.Dropout()), {}, r"1 \(Dropout\) is random"),
        (network(), {"upper": ["head"], "lower": ["head"]}, "is in both upper and low"),
        (network(), {"upper": ["backbon"]}, "no parameter and no submodule"),
        (network(), {"upper": ["backbone", "head"]}, "No parameter is left for y"),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_its_cure(module, names, message):
    with pytest.raises(ValueError, match=message):
        SplitModule(module, **names)


def test_a_text_in_place_of_names_is_refused():
    with pytest.raises(TypeError, match=r'Pass a list: \["head"\]'):
        SplitModule(network(), upper="head")


def test_modules_without_changes_in_evaluation_are_taken():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1)).eval()
    model = SplitModule(module)
    assert model(model.x, model.y, torch.ones(2, 3)).shape == (2, 1)


def test_conversion_keeps_numbers_and_widens_integers():
    row = np.arange(3, dtype=np.int32)
    row.flags.writeable = False
    tensors = to_tensors({"row": row, "step": 3})
    assert tensors["row"].dtype == torch.int64
    assert tensors["row"].tolist() == [0, 1, 2]


def test_a_device_without_examples_is_named_by_its_number():
    devices = OnDemandTensors(9, lambda number: LocalExamples(torch.ones(0), data()))
    with pytest.raises(ValueError, match="Device 7: upper examples are empty"):
        devices.cohort(np.array([7]))
