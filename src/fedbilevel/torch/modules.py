"""Modules of PyTorch as x and y: parameters by name, and a function of them."""

from collections.abc import Collection, Iterator, Mapping
from threading import RLock
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

Parameters: TypeAlias = dict[str, Tensor]
"""Parameters of a module, by their names in its state dict."""

# A call replaces the parameters of the module for its time, which another thread, such
# as one of a callback from JAX, must not see.
_CALLS = RLock()


class SplitModule:
    """A module whose parameters are split into x, y and constants.

    The module itself never changes in a run. Parameters outside x and y, and all
    buffers, are constants: every call has a copy of the buffers, so a module cannot
    change them either. A federation neither sends nor averages constants, so every
    site must build the module with the same ones.

    Args:
        module: module to split. It is in the mode of its last call of `train` or
            `eval`.
        upper: names of the parameters and submodules of x; empty if x is not part of
            the module.
        lower: names of the parameters and submodules of y; None for all other
            parameters with `requires_grad`.

    Attributes:
        module: the module, with its parameters before the run.
        x: parameters of x.
        y: parameters of y.

    Raises:
        ValueError: if a name does not exist, if x and y share a parameter, or if the
            module is random or changes its buffers in a call.

    Example:
        >>> from collections import OrderedDict
        >>> layers = OrderedDict(backbone=nn.Linear(3, 2), head=nn.Linear(2, 1))
        >>> model = SplitModule(nn.Sequential(layers), upper=["backbone"])
        >>> list(model.x), list(model.y)
        (['backbone.weight', 'backbone.bias'], ['head.weight', 'head.bias'])
        >>> model(model.x, model.y, torch.ones(5, 3)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        upper: Collection[str] = (),
        lower: Collection[str] | None = None,
    ) -> None:
        _require_pure(module)
        self.module = module
        parameters = dict(module.named_parameters())
        of_x = set(_chosen(parameters, upper, "upper"))
        if lower is None:
            of_y = {name for name, p in parameters.items() if p.requires_grad} - of_x
        else:
            of_y = set(_chosen(parameters, lower, "lower"))
        if shared := sorted(of_x & of_y):
            raise ValueError(
                f"The parameter {shared[0]} is in both upper and lower. Name each "
                "parameter in one of them."
            )
        if not of_y:
            raise ValueError(
                "No parameter is left for y. Name parameters in lower, or set their "
                "requires_grad."
            )
        values = {name: value.detach().clone() for name, value in parameters.items()}
        self.x: Parameters = {n: v for n, v in values.items() if n in of_x}
        self.y: Parameters = {n: v for n, v in values.items() if n in of_y}
        self._constants = {n: v for n, v in values.items() if n not in of_x | of_y}
        self._buffers = {n: b.detach().clone() for n, b in module.named_buffers()}

    def __call__(
        self,
        x: Mapping[str, Tensor],
        y: Mapping[str, Tensor],
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        """Return the module's output at x and y.

        Args:
            x: parameters of x.
            y: parameters of y.
            arguments: arguments of the module.
            keywords: keyword arguments of the module.
        """
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        values = {**self._constants, **buffers, **x, **y}
        with _CALLS:
            return functional_call(self.module, values, arguments, keywords)

    def load(self, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> nn.Module:
        """Write x and y into the parameters of the module, and return it.

        Example:
            >>> model = SplitModule(nn.Linear(2, 1))
            >>> tuned = model.load({}, {"weight": torch.ones(1, 2), "bias": [3.0]})
            >>> tuned(torch.ones(2)).tolist()
            [5.0]
        """
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, value in {**x, **y}.items():
                parameters[name].copy_(torch.as_tensor(value))
        return self.module


def _chosen(
    parameters: Mapping[str, Tensor], names: Collection[str], level: str
) -> Iterator[str]:
    """Yield the parameters with a name, or within a submodule with a name."""
    if isinstance(names, str):
        raise TypeError(f'{level} is the text "{names}". Pass a list: ["{names}"].')
    for name in names:
        matching = [each for each in parameters if f"{each}.".startswith(f"{name}.")]
        if not matching:
            raise ValueError(
                f"{level}: the module has no parameter and no submodule with "
                f"parameters {name!r}. Its first parameters are "
                f"{', '.join(list(parameters)[:4])}."
            )
        yield from matching


def _require_pure(module: nn.Module) -> None:
    """Raise an error for known modules whose calls are random or change buffers."""
    for name, part in module.named_modules():
        if not part.training:
            continue
        where = f"{name or 'The module'} ({type(part).__name__})"
        normalises = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if normalises and part.track_running_stats:
            raise ValueError(
                f"{where} changes its running statistics in every call, so the loss "
                "would depend on earlier calls. Use torch.nn.GroupNorm, or call eval() "
                "on the module to use the stored statistics."
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise ValueError(
                f"{where} is random, so the loss would not be a function of x, y and "
                "the batch. Call eval() on the module, or set p to 0."
            )
