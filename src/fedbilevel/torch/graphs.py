"""The graphs of a problem's losses and oracles, to compare two machines."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jax.tree_util import tree_flatten, tree_map, tree_unflatten
from jaxtyping import PyTree
from torch.fx.experimental.proxy_tensor import make_fx

from fedbilevel.data.examples import StoredData, seen_by
from fedbilevel.engines.program_text import constant_text, plain_text
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.torch.conversion import to_tensors


def graph_texts(
    problem: BilevelProblem, x: Upper, y: Lower, data: StoredData
) -> Iterator[str]:
    """Yield the text of the graph of each loss and oracle, with its constants.

    Args:
        problem: problem of `bilevel_problem`.
        x: start of the upper variable; only its shapes and types matter.
        y: start of the lower variable.
        data: stored examples of a device, of which one of each level is read.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> from fedbilevel.torch import bilevel_problem
        >>> rows = StoredExamples(np.ones(1), np.array(0), np.array(1))
        >>> data, one = StoredData(rows, rows), np.float32(1.0)
        >>> texts = [
        ...     list(graph_texts(bilevel_problem(loss, loss), one, one, data))
        ...     for loss in (
        ...         lambda x, y, batch: torch.mean((y - x * batch) ** 2),
        ...         lambda x, y, batch: torch.mean((y - x * batch) ** 4),
        ...     )
        ... ]
        >>> len(texts[0]), texts[0] == texts[1]
        (7, False)
    """
    x, y = to_tensors(seen_by(data, x)), to_tensors(y)
    upper, lower = to_tensors(data.upper.arrays), to_tensors(data.lower.arrays)
    calls: dict[str, tuple[Any, ...]] = {
        "upper_loss": (x, y, upper),
        "lower_loss": (x, y, lower),
        "upper_gradients": (x, y, upper),
        "lower_gradient": (x, y, lower),
        "lower_gradient_x": (x, y, lower),
        "hessian_product": (x, y, lower, y),
        "cross_product": (x, y, lower, y),
    }
    for name, arguments in calls.items():
        yield f"{name}\n{_text(getattr(problem, name), arguments)}"


def _text(function: Callable[..., PyTree], arguments: tuple[Any, ...]) -> str:
    """Return the text of a function's graph.

    PyTorch cannot trace a loss that reads the value of a tensor: its text is its error.
    """
    leaves, structure = tree_flatten(arguments)

    def flat(*leaves: torch.Tensor) -> list[torch.Tensor]:
        return tree_flatten(function(*tree_unflatten(structure, leaves)))[0]

    try:
        graph = make_fx(flat)(*tree_map(torch.clone, leaves))
    except RuntimeError as error:
        return f"not traced: {type(error).__name__}"
    # Parameters of a network that a loss reads are constants, too.
    targets = (node.target for node in graph.graph.nodes if node.op == "get_attr")
    constants = [
        _constant_text(getattr(graph, name)) for name in dict.fromkeys(targets)
    ]
    return "\n".join([plain_text(str(graph.graph)), *constants]) + "\n"


def _constant_text(tensor: torch.Tensor) -> str:
    # NumPy has no bfloat16.
    numbers = tensor.double() if tensor.is_floating_point() else tensor
    return f"{tensor.dtype} {constant_text(numbers.detach().cpu().numpy())}"
