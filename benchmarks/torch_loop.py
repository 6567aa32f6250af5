"""LocalBSGM and LocalBSGVRM in the style of public research code.

A Python loop over devices and steps, PyTorch autograd, Hessian products by a second
backward pass, averages with `torch.stack`, without deliberate slowdown.
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from benchmarks.bare import Settings


class Problem(NamedTuple):
    """Upper and lower loss, of (x, y, batch), and the start of x and y."""

    f: Any
    g: Any
    x: torch.Tensor
    y: torch.Tensor


def softmax(features: int) -> Problem:
    """Return the problem of `benchmarks.softmax`."""

    def f(x: Any, y: Any, batch: Any) -> Any:
        rows, labels = batch
        return cross_entropy(rows @ y.T, labels)

    def g(x: Any, y: Any, batch: Any) -> Any:
        return f(x, y, batch) + 0.5 * (torch.exp(x)[None, :] * y**2).sum()

    return Problem(f, g, torch.full((features,), -4.0), torch.zeros((10, features)))


def hypergradient(
    problem: Problem, x: Any, y: Any, upper: Any, cross: Any, curvature: Any, theta: Any
) -> Any:
    f, g, *_ = problem
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    loss = f(x, y, upper)
    gx, gy = torch.autograd.grad(loss, (x, y), allow_unused=True)
    gx = torch.zeros_like(x) if gx is None else gx
    power = total = gy
    for batch in reversed(curvature):
        # Without the graph of x, which a product with the Hessian does not need.
        loss = g(x.detach(), y, batch)
        (gradient,) = torch.autograd.grad(loss, y, create_graph=True)
        (product,) = torch.autograd.grad(gradient, y, grad_outputs=power)
        power = power - theta * product
        total = total + power
    (gradient,) = torch.autograd.grad(g(x, y, cross), y, create_graph=True)
    (mixed,) = torch.autograd.grad(gradient, x, grad_outputs=theta * total)
    return gx - mixed


def lower_gradient(problem: Problem, x: Any, y: Any, batch: Any) -> Any:
    y = y.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.g(x, y, batch), y)
    return gradient


class Loop:
    """A federation in PyTorch, one round per call."""

    def __init__(
        self, problem: Problem, settings: Settings, algorithm: int, data: list[Any]
    ) -> None:
        self.problem, self.data = problem, data
        self.settings, self.algorithm = settings, algorithm
        x, y = problem.x, problem.y
        self.state = (x, y, torch.zeros_like(x), torch.zeros_like(y))

    def draw(self, device: int) -> Any:
        """Return ξ, ζ, ζ_0 and ζ_1 … ζ_Q."""
        upper, lower = self.data[device]

        def batch(level: Any) -> Any:
            features, labels = level
            rows = torch.randint(len(labels), (self.settings.batch,))
            return features[rows], labels[rows]

        curvature = [batch(lower) for _ in range(self.settings.q)]
        return batch(upper), batch(lower), batch(lower), curvature

    def step(self, state: Any, device: int) -> Any:
        """Return a device's next state."""
        _, _, _, _, _, theta, eta, rho1, rho2, alpha, beta = self.settings
        x, y, u, v = state
        x_new, y_new = x - rho1 * eta * u, y - rho2 * eta * v
        upper, lower, cross, curvature = self.draw(device)
        h = hypergradient(self.problem, x_new, y_new, upper, cross, curvature, theta)
        fresh = lower_gradient(self.problem, x_new, y_new, lower)
        if self.algorithm == 1:
            u = (1 - alpha * eta) * u + alpha * eta * h
            v = (1 - beta * eta) * v + beta * eta * fresh
        else:
            h_old = hypergradient(self.problem, x, y, upper, cross, curvature, theta)
            u = (1 - alpha * eta**2) * (u - h_old) + h
            v = (1 - beta * eta**2) * (
                v - lower_gradient(self.problem, x, y, lower)
            ) + fresh
        return x_new, y_new, u, v

    def round(self) -> None:
        """Run all devices and average."""
        ends = []
        for device in range(self.settings.devices):
            state = self.state
            for _ in range(self.settings.p):
                state = self.step(state, device)
            ends.append(state)
        self.state = tuple(
            torch.stack(field).mean(0) for field in zip(*ends, strict=True)
        )
