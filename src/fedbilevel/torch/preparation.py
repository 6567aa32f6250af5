"""Preparation of a run with tensors: checks, devices and the first state."""

from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import PyTree
from torch import Tensor

from fedbilevel.data.devices import Devices, InMemoryDevices, OnDemandDevices
from fedbilevel.data.examples import seen_by
from fedbilevel.data.weights import with_levels
from fedbilevel.engines.checks import describe_failure, require_fitting
from fedbilevel.engines.loss_checks import MOST_ROWS, require_mean
from fedbilevel.engines.phase_checks import (
    check_algorithm,
    check_first_state,
    check_phases,
)
from fedbilevel.engines.preparation import Prepared, references
from fedbilevel.engines.protocol import Job, RunState
from fedbilevel.engines.run import Run, check_arguments
from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Loss, Lower, Upper
from fedbilevel.torch.conversion import to_arrays, to_tensors
from fedbilevel.torch.devices import (
    OnDemandTensors,
    TensorDevices,
    TensorExamples,
)
from fedbilevel.transforms.transformed import transforms_of


def prepare_tensors(run: Run) -> Prepared:
    """Check the arguments of a run, and return its job and first state.

    Raises:
        ValueError: if an argument is invalid, or arguments do not fit together.
    """
    problem, algorithm = run.problem, run.algorithm
    check_algorithm(algorithm)
    if transforms_of(algorithm):
        raise TypeError(
            "TensorSimulation does not run transforms. Pass engine=Simulation() and "
            "the examples as arrays of NumPy in InMemoryDevices: it calls PyTorch for "
            "one device after another."
        )
    for name, variable in (("x", run.x), ("y", run.y)):
        if isinstance(variable, torch.nn.Module):
            raise TypeError(
                f"{name} is a {type(variable).__name__}. Pass its parameters, such as "
                f"SplitModule(module).{name}."
            )
    check_arguments(run)
    if not isinstance(problem, BilevelProblem) or problem.view is None:
        raise TypeError(
            "TensorSimulation needs losses of tensors. Pass "
            "fedbilevel.torch.bilevel_problem(upper_loss, lower_loss), or another "
            "engine."
        )
    x, y = jax.tree.map(
        # A later change of the caller's tensors must not change the run.
        torch.clone,
        arrays.canonical((to_tensors(run.x), to_tensors(run.y))),
    )
    require_fitting(algorithm, run.devices, run.weights)
    count = run.devices.device_count
    usual = len(run.participation(run.seed, 0, count))
    devices, weights = with_levels(_tensor_devices(run.devices), run.weights, x, usual)
    check_losses(problem, x, y, devices)
    problem = for_devices(problem)
    first = algorithm.init(problem, x, y)
    check_first_state(algorithm, first)
    server, private = arrays.canonical(first)
    every, opens = algorithm.phases(problem), algorithm.opening(problem)
    check_phases(algorithm, "phases", every)
    check_phases(algorithm, "opening", opens)
    phases = references(False, every)
    key: Any = HostKey.of(run.seed)
    job = Job(
        problem=problem,
        algorithm=algorithm,
        devices=devices,
        form=devices.cohort(np.array(0)),
        key=key,
        opening=references(True, opens) or phases,
        phases=phases,
        cohort_size=usual,
        loaded_bytes=0,
        limits=run.limits,
        # The engine counts the costs of each exchange.
        costs={},
    )
    state = RunState(server, run.engine.private_states(private, count))
    return Prepared(
        job,
        state,
        weights,
        run.engine,
        run.rounds,
        run.participation,
        run.seed,
    )


def check_losses(
    problem: BilevelProblem,
    x: Upper,
    y: Lower,
    devices: Devices,
) -> None:
    """Raise an error unless x and y are differentiable and both losses are means.

    Raises:
        ValueError: if they are not.

    Example:
        >>> from fedbilevel import LocalExamples
        >>> from fedbilevel.torch import bilevel_problem
        >>> problem = bilevel_problem(
        ...     lambda x, y, batch: torch.sum(y * batch),
        ...     lambda x, y, batch: torch.mean(y * batch),
        ... )
        >>> devices = TensorDevices([LocalExamples(torch.ones(3), torch.ones(3))])
        >>> check_losses(problem, torch.tensor(1.0), torch.tensor(1.0), devices)
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: upper_loss is not a mean over its batch: on 3 examples it is 3, but
        the mean of its values on each single example is 1. Return the mean ...
    """
    for name, variable in (("x", x), ("y", y)):
        _check_start(name, variable)
    data: Any = devices.cohort(np.array(0))
    reached = {}
    x = seen_by(data, x)
    for name, loss, examples in (
        ("upper_loss", problem.upper_loss, data.upper),
        ("lower_loss", problem.lower_loss, data.lower),
    ):
        rows = _rows(examples)
        _check_scalar(name, loss, x, y, rows)
        start = jax.tree.map(arrays.on_host, {"x": x, "y": y, "rows": rows})
        require_mean(name, loss, **start, values=_values(x, y, rows))
        reached[name] = _reached(loss, x, y, rows)
    _check_dependence(**reached)


def _tensor_devices(devices: Any) -> TensorDevices | OnDemandTensors:
    if isinstance(devices, TensorDevices | OnDemandTensors):
        return devices
    if isinstance(devices, InMemoryDevices):
        return TensorDevices.of(devices)
    if isinstance(devices, OnDemandDevices):
        load = devices.load
        return OnDemandTensors(devices.device_count, lambda k: to_tensors(load(k)))
    raise TypeError(
        f"devices is of type {type(devices).__name__}. Pass "
        "fedbilevel.torch.TensorDevices or OnDemandTensors, or InMemoryDevices."
    )


def _check_start(name: str, variable: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(variable)
    if not leaves:
        raise ValueError(f"{name} has no tensors. Pass at least one tensor.")
    for path, leaf in leaves:
        where = f"{name}{jax.tree_util.keystr(path)}"
        if not leaf.is_floating_point():
            raise ValueError(
                f"{where} has dtype {leaf.dtype}, which is not differentiable. Convert "
                "it to floating point."
            )
        if not leaf.isfinite().all():
            raise ValueError(
                f"{where} is not finite at the start of the run. Pass finite initial "
                "values."
            )


def _check_scalar(name: str, loss: Loss, x: Upper, y: Lower, rows: Batch) -> None:
    try:
        value: Any = loss(x, y, rows)
    except Exception as error:
        raise ValueError(
            describe_failure(
                name, loss, jax.tree.map(arrays.on_host, (x, y, rows)), error
            )
            + _cure_of_dtypes(error)
        ) from error
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} returned a {type(value).__name__}. Return a tensor: the mean over "
            "the batch."
        )
    if value.shape or not value.is_floating_point():
        raise ValueError(
            f"{name} returned a tensor of shape {tuple(value.shape)} and dtype "
            f"{value.dtype}. Return the mean over the batch, a floating-point scalar."
        )
    again: Any = loss(x, y, rows)
    if not bool(torch.equal(value, again)) and bool(torch.isfinite(value)):
        raise ValueError(
            f"{name} is random: on the same batch it is {float(value):.6g} and then "
            f"{float(again):.6g}. Call eval() on modules with dropout, and draw no "
            "random numbers in a loss."
        )


def _cure_of_dtypes(error: Exception) -> str:
    if "dtype" not in str(error) and "scalar type" not in str(error):
        return ""
    return (
        " Convert features by .float() and labels by .long(), or x and y by .double()."
    )


def _reached(loss: Loss, x: Upper, y: Lower, rows: Batch) -> set[str]:
    """Return which of x and y the graph of a loss reaches."""
    leaves = jax.tree.map(lambda leaf: leaf.detach().requires_grad_(), (x, y))
    with torch.enable_grad():
        value: Any = loss(leaves[0], leaves[1], rows)
    if not value.requires_grad:
        return set()
    slopes = [
        torch.autograd.grad(
            value, jax.tree.leaves(level), allow_unused=True, retain_graph=True
        )
        for level in leaves
    ]
    return {
        name
        for name, of_level in zip("xy", slopes, strict=True)
        if any(slope is not None for slope in of_level)
    }


def _check_dependence(upper_loss: set[str], lower_loss: set[str]) -> None:
    """Raise an error if the graphs of the losses do not reach what they must."""
    cure = (
        "Compute the loss from its arguments x and y: call SplitModule's model(x, y, "
        "...) and not the module itself, without detach(), item() and torch.no_grad()."
    )
    if not upper_loss:
        raise ValueError(f"upper_loss has no derivative in x and y. {cure}")
    if "y" not in lower_loss:
        raise ValueError(f"lower_loss has no derivative in y. {cure}")
    if "x" not in upper_loss | lower_loss:
        raise ValueError(f"No loss has a derivative in x. {cure}")


def _rows(examples: TensorExamples) -> Batch:
    """Return a few examples of a device, at equal distances."""
    first, size = int(examples.offsets), int(examples.sizes)
    indices = np.linspace(0, size - 1, min(size, MOST_ROWS)).astype(int)
    # A single example is repeated, because a batch of one cannot reveal a sum.
    rows = torch.as_tensor(first + (indices if size > 1 else np.zeros(2, int)))
    return jax.tree.map(lambda leaf: leaf[rows.to(leaf.device)], examples.arrays)


def _values(x: Upper, y: Lower, rows: Batch) -> Any:
    """Return a function that evaluates a loss on tensors like these."""

    def values(loss: Loss, near_x: Upper, near_y: Lower, _: Batch) -> Any:
        x_, y_ = jax.tree.map(arrays.restore, (near_x, near_y), (x, y))
        count = len(jax.tree.leaves(rows)[0])
        single: list[Any] = [
            loss(x_, y_, jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], rows))
            for k in range(count)
        ]
        return to_arrays((loss(x_, y_, rows), torch.stack(single)))

    return values
