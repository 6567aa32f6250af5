"""Modules of PyTorch as x and y: parameters by name, and a function of them."""

from collections.abc import Collection, Iterator, Mapping
from threading import RLock
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

Parameters: TypeAlias = dict[str, Tensor]
"""Parameters of a module, by their names in its state dict."""

_NO_HOOKS = torch.autograd.graph.disable_saved_tensors_hooks
NO_CHECKPOINTING = (
    "Activation checkpointing would compute the module again with its own parameters "
    "instead of x and y. Switch it off, such as by gradient_checkpointing_disable()."
)

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
        x: parameters of x, sorted by name.
        y: parameters of y, sorted by name.

    Raises:
        ValueError: if a name does not exist, if x and y share a parameter, or if the
            module has batch normalisation with running statistics or dropout that is
            switched on. A run refuses other modules that are random.

    Example:
        >>> from collections import OrderedDict
        >>> layers = OrderedDict(backbone=nn.Linear(3, 2), head=nn.Linear(2, 1))
        >>> model = SplitModule(nn.Sequential(layers), upper=["backbone"])
        >>> list(model.x), list(model.y)
        (['backbone.bias', 'backbone.weight'], ['head.bias', 'head.weight'])
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
        self.module, self._training = module, module.training
        parameters = dict(module.named_parameters())
        twins = dict(module.named_parameters(remove_duplicate=False))
        for name in set(twins) - set(parameters):
            if name in {*upper, *(lower or ())}:
                (first,) = (n for n, p in parameters.items() if p is twins[name])
                raise ValueError(
                    f"{name} is tied to {first}, so it has the same value. Name "
                    f"{first} instead."
                )
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
        # Sorted, as JAX's trees sort dictionaries: a loss that loops over x or y has
        # the same order everywhere.
        self.x: Parameters = {name: values[name] for name in sorted(of_x)}
        self.y: Parameters = {name: values[name] for name in sorted(of_y)}
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
        _require_names(self, x, y)
        if self.module.training != self._training:
            raise ValueError(
                "The module was switched by train() or eval() after it was split. "
                "Split it again, or switch it back."
            )
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        values = {**self._constants, **buffers, **x, **y}
        with _CALLS, _NO_HOOKS(NO_CHECKPOINTING):
            return functional_call(self.module, values, arguments, keywords)

    def load(self, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> nn.Module:
        """Write x and y into the parameters of the module, and return it.

        Example:
            >>> model = SplitModule(nn.Linear(2, 1))
            >>> y = {"weight": torch.ones(1, 2), "bias": torch.tensor([3.0])}
            >>> tuned = model.load({}, y)
            >>> tuned(torch.ones(2)).tolist()
            [5.0]
        """
        _require_names(self, x, y)
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, value in {**x, **y}.items():
                tensor = torch.as_tensor(value)
                if tensor.shape != parameters[name].shape:
                    raise ValueError(
                        f"{name} has shape {list(tensor.shape)}, but the module's has "
                        f"{list(parameters[name].shape)}. Pass values of that shape."
                    )
                parameters[name].copy_(tensor)
        return self.module

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return all that a call depends on; tuned values in the module are not."""
        return {
            "class": type(self).__name__,
            "architecture": repr(self.module),
            "x": self.x,
            "y": self.y,
            "constants": self._constants,
            "buffers": self._buffers,
        }


def _require_names(
    model: SplitModule, x: Mapping[str, Tensor], y: Mapping[str, Tensor]
) -> None:
    """Raise ValueError unless x and y have the names of the model's."""
    for level, ours, passed in (("x", model.x, x), ("y", model.y, y)):
        if passed.keys() == ours.keys():
            continue
        cure = (
            f"Pass model(x, y, ...) with the parameters of model.{level}, or an empty "
            "dictionary if it has none."
        )
        if foreign := passed.keys() - ours.keys():
            raise ValueError(
                f"{level} has the parameter {min(foreign)!r}, which is not in the "
                f"{level} of the split module. {cure}"
            )
        missing = min(ours.keys() - passed.keys())
        raise ValueError(f"{level} lacks the parameter {missing!r}. {cure}")


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
                f"parameters {name!r}. Use one of its names, such as "
                f"{', '.join(list(parameters)[:4])}."
            )
        yield from matching


def _require_pure(module: nn.Module) -> None:
    """Raise an error for known modules whose calls are random or mix examples."""
    for name, part in module.named_modules():
        where = f"{name or 'The module'} ({type(part).__name__})"
        mixes = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if mixes and (part.training or part.running_mean is None):
            raise ValueError(
                f"{where} normalises by statistics of the batch, so the loss is not a "
                "mean over examples. Use torch.nn.GroupNorm, or call eval() on the "
                "module to use running statistics."
            )
        if not part.training:
            continue
        chance = getattr(part, "p", 0) if "Dropout" in type(part).__name__ else 0
        # Attention and recurrent layers have dropout inside.
        inside = getattr(part, "dropout", 0)
        if chance or (isinstance(inside, float) and inside):
            raise ValueError(
                f"{where} is random, so the loss would not be a function of x, y and "
                "the batch. Call eval() on the module, or set its dropout to 0."
            )
