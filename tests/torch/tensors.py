"""The quadratic of `tests.quadratic`, written in PyTorch."""

import jax
import numpy as np
import torch

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.torch import TensorDevices, bilevel_problem
from tests import quadratic
from tests.engines import federation


def upper_loss(x, y, batch):
    distances = y[None] - batch.target
    return (
        0.5 * (distances**2).sum(1).mean()
        + batch.shift.mean(0) @ x
        + 0.5 * quadratic.RIDGE * (x**2).sum()
    )


def lower_loss(x, y, batch):
    curved = 0.5 * torch.einsum("i,bij,j->b", y, batch.matrix, y)
    linear = (batch.coupling @ x + batch.offset) @ y
    return (curved - linear).mean()


def problem() -> BilevelProblem:
    return bilevel_problem(upper_loss, lower_loss)


def tensors(examples: LocalExamples) -> LocalExamples:
    return LocalExamples(*jax.tree.map(torch.as_tensor, tuple(examples)))


def devices() -> TensorDevices:
    return TensorDevices([tensors(examples) for examples in federation.held()])


def start() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (torch.as_tensor(np.array(value)) for value in federation.START)
    return x, y


def arrays() -> InMemoryDevices:
    return InMemoryDevices(federation.held())
