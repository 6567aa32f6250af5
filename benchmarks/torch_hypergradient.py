"""A hypergradient by a Neumann series, against those of betty-ml and boat-torch.

    pip install --no-deps betty-ml==0.1.1 boat-torch==1.1.1
    python -m benchmarks.torch_hypergradient

All compute the same numbers, with one batch for all terms: both libraries read the
loss once and multiply by its Hessian again and again. Of each library only the function
of the series is called, without its classes for problems and engines, which would add
to its time. A second row has the estimator of the paper, with an own batch for each
term, which reads the loss as often as there are terms.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.timing import (
    Bound,
    conclude,
    interleave,
    print_table,
    ratio,
    wants_fast,
)
from benchmarks.torch_models import ResidualNetwork, squares
from fedbilevel import NeumannSeries, Samples
from fedbilevel.torch import SplitModule, bilevel_problem

TERMS, SCALE = 10, 0.05
LIMIT = 1.0


def require(package: str) -> Path:
    """Return the directory of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        sys.exit(
            f"{package} is not installed. Install it: pip install --no-deps "
            "betty-ml==0.1.1 boat-torch==1.1.1"
        )
    return Path(found.origin).parent


def load(path: Path) -> ModuleType:
    """Return a module of boat-torch, whose package needs further libraries."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Case:
    """A residual network: the backbone is x, the head y, images are random.

    Args:
        batch: number of images.
    """

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        self.model = SplitModule(ResidualNetwork(16, blocks=2), upper=["backbone"])
        # The head must not be 0, or the backbone has no gradient.
        self.y = {n: 0.1 * torch.randn_like(v) for n, v in self.model.y.items()}
        self.batch = torch.randn(batch, 1, 14, 14), torch.randint(10, (batch,))
        self.others = [
            (torch.randn(batch, 1, 14, 14), torch.randint(10, (batch,)))
            for _ in range(TERMS)
        ]
        self.problem = bilevel_problem(self.upper_loss, self.lower_loss)
        self.series = NeumannSeries(TERMS, SCALE)

    def upper_loss(self, x: Any, y: Any, batch: Any) -> torch.Tensor:
        """Return the loss on images."""
        images, labels = batch
        return cross_entropy(self.model(x, y, images), labels)

    def lower_loss(self, x: Any, y: Any, batch: Any) -> torch.Tensor:
        """Return the loss on images with a ridge."""
        return self.upper_loss(x, y, batch) + 0.01 * squares(y)

    def ours(self, curvature: list[Any]) -> Any:
        """Return the estimate of the package."""
        samples = Samples(self.batch, self.batch, self.batch, tuple(curvature))
        return self.series(self.problem, self.model.x, self.y, samples)

    def leaves(self) -> tuple[list[Any], list[Any], Any, Any]:
        """Return x and y as leaves that require gradients, and both losses."""
        x, y = (
            {name: value.clone().requires_grad_() for name, value in level.items()}
            for level in (self.model.x, self.y)
        )
        losses = (loss(x, y, self.batch) for loss in (self.upper_loss, self.lower_loss))
        return list(x.values()), list(y.values()), *losses

    def boat(self, series: Callable[..., Any]) -> Any:
        """Return the hypergradient of boat-torch."""
        x, y, upper, lower = self.leaves()

        def step(parameters: list[Any], loss: Any) -> list[Any]:
            slopes = torch.autograd.grad(loss, parameters, create_graph=True)
            return [p - SCALE * s for p, s in zip(parameters, slopes, strict=True)]

        return series(y, x, upper, lower, TERMS, step, tol=0.0)

    def betty(self, series: Callable[..., Any]) -> Any:
        """Return the hypergradient of betty-ml."""
        x, y, upper, lower = self.leaves()
        level = SimpleNamespace(
            paths=[],
            config=SimpleNamespace(neumann_iterations=TERMS, neumann_alpha=SCALE),
            cur_batch=self.batch,
            training_step_exec=lambda batch: lower,
            trainable_parameters=lambda: y,
        )
        slopes = torch.autograd.grad(upper, [*x, *y])
        above = SimpleNamespace(trainable_parameters=lambda: x)
        indirect = series(slopes[len(x) :], level, above)
        return [a + b for a, b in zip(slopes[: len(x)], indirect, strict=True)]


def main() -> None:
    """Compare the numbers and the times of all three."""
    fast = wants_fast(__doc__, "a small batch")
    require("betty")
    from betty.hypergradient import neumann as of_betty

    of_boat = load(require("boat_torch") / "utils" / "op_utils.py").neumann
    case = Case(batch=4 if fast else 64)
    calls = {
        "package": lambda: case.ours([case.batch] * TERMS),
        "package, own batches": lambda: case.ours(case.others),
        "betty-ml": lambda: case.betty(of_betty),
        "boat-torch": lambda: case.boat(of_boat),
    }
    estimate = calls["package"]()
    expected = [estimate[name] for name in case.model.x]
    for name in ("betty-ml", "boat-torch"):
        for ours, theirs in zip(expected, calls[name](), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-6)
    seconds = interleave(calls, repeats=31, rehearse=True)
    rows = [
        (
            name,
            f"{1e3 * median(times):.1f}",
            *(
                f"{ratio(times, seconds[other]):.2f}"
                for other in ("betty-ml", "boat-torch")
            ),
        )
        for name, times in seconds.items()
    ]
    print_table(("hypergradient", "ms", "of betty-ml", "of boat-torch"), rows)
    conclude(
        [
            Bound(other, ratio(seconds["package"], seconds[other]), LIMIT)
            for other in ("betty-ml", "boat-torch")
        ]
    )


if __name__ == "__main__":
    main()
