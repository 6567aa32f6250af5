"""The engine of problems of PyTorch: all devices in one process."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import PyTree
from torch import Tensor

from fedbilevel.algorithms.protocol import Downlink, Phase, Private, Upload
from fedbilevel.engines.costs import CountingData, DeviceCosts
from fedbilevel.engines.device_work import DeviceResult, loop_steps, run_device
from fedbilevel.engines.limits import Limits, reach_of
from fedbilevel.engines.preparation import Prepared
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
    device_key,
    server_key,
)
from fedbilevel.engines.run import Run
from fedbilevel.engines.screening import acceptable_in, distances
from fedbilevel.mathematics import arrays
from fedbilevel.torch.conversion import to_arrays
from fedbilevel.torch.preparation import prepare_tensors


@dataclass(frozen=True)
class TensorSimulation:
    """An engine that simulates all devices in one process, with tensors.

    The samples are those of `Simulation` with the same seed, and so are the numbers, up
    to rounding. The tensors of a round are those of the run: clone them before changing
    them in place.

    Attributes:
        vectorised: run all devices at once by `torch.func.vmap`; otherwise in turn.
            Losses with operations that `vmap` does not support, such as branches on
            values of tensors, need False.
    """

    vectorised: bool = True

    def example_device(self, device_count: int) -> int:
        """Return 0: this process has the data of all devices."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the private states of all devices, which all start at `private`."""
        return jax.tree.map(
            lambda leaf: (
                torch.as_tensor(leaf).expand(device_count, *leaf.shape).clone()
            ),
            jax.tree.map(torch.as_tensor, private),
        )

    def prepare(self, run: Run) -> Prepared:
        """Check the arguments of a run, and return its job and first state."""
        return prepare_tensors(run)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return job and state unchanged."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Run an exchange; return the state after it and its report."""
        phase = reference.of(job.algorithm, job.problem)
        server, private = state
        downlink = phase.broadcast(server)
        devices, present = participants.devices, participants.present
        counters: list[CountingData] = []
        states = jax.tree.map(lambda leaf: leaf[present], private)
        work = _all_at_once if self.vectorised else _in_turn
        result = work(phase, downlink, states, job, moment, present, counters)
        costs = DeviceCosts(
            counters[0].upper.drawn,
            counters[0].lower.drawn,
            _bytes(downlink),
            _bytes(result.upload) // len(present),
            0,
        )
        received = result.upload
        if phase.is_decoded:
            decode = torch.func.vmap(phase.decode_upload, (0, None))
            received = decode(received, downlink)
        counted = _finite(received) & _finite(result.info)
        counted &= _within_limits(phase, received, downlink, counted, job.limits)
        counted_here = np.isin(devices, present[counted.numpy()])
        shares = torch.as_tensor(participants.weights[participants.weights > 0])
        shares = torch.where(counted.cpu(), shares, 0.0)
        report = Report(
            devices,
            participants.weights > 0,
            (counted_here,),
            {},
            (),
            costs=costs,
        )
        if not bool(counted.any()):
            return state, report
        shares = shares / shares.sum()
        mean, dispersion = _mean(received, shares)
        info, _ = _mean(result.info, shares)
        accepted = present[counted.numpy()]
        private = jax.tree.map(
            lambda leaf, new: leaf.index_copy(
                0,
                torch.from_numpy(accepted).to(leaf.device),
                new[counted.to(new.device)].detach().to(leaf.dtype),
            ),
            private,
            result.private,
        )
        key: Any = server_key(job.key, moment)
        # Without the graphs of parameters outside x and y, which would grow.
        following = arrays.canonical(phase.server(server, mean, key))
        following = jax.tree.map(_in_dtype_of, following, server)
        return RunState(following, private), report._replace(
            info=info, dispersion=dispersion
        )


def _all_at_once(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    job: Job,
    moment: Moment,
    devices: np.ndarray,
    counters: list[CountingData],
) -> DeviceResult:
    """Return the results of all devices along a leading axis, by `vmap`."""
    data: Any = job.devices.cohort(devices)
    key: Any = device_key(job.key, moment, devices)

    def work(private: Private, index: Tensor) -> DeviceResult:
        return _work(phase, downlink, private, data.at(index), key, counters)

    indices = torch.arange(len(devices))
    try:
        result: DeviceResult = torch.func.vmap(work)(private, indices)
    except Exception as error:
        error.add_note(
            "This happened in torch.func.vmap, which runs all devices at once. If an "
            "operation does not support it, pass TensorSimulation(vectorised=False)."
        )
        raise
    return result


def _in_turn(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    job: Job,
    moment: Moment,
    devices: np.ndarray,
    counters: list[CountingData],
) -> DeviceResult:
    """Return the results of all devices along a leading axis, one after another."""
    results = []
    for row, device in enumerate(devices.tolist()):
        data: Any = job.devices.cohort(np.array(device))
        key: Any = device_key(job.key, moment, device)
        own = jax.tree.map(lambda leaf, k=row: leaf[k], private)
        results.append(_work(phase, downlink, own, data, key, counters))
    stacked: DeviceResult = jax.tree.map(lambda *leaves: torch.stack(leaves), *results)
    return stacked


def _work(
    phase: Phase,
    downlink: Downlink,
    private: Private,
    data: Any,
    key: Any,
    counters: list[CountingData],
) -> DeviceResult:
    """Return the result of a device; append the counters of its examples."""
    counters.append(CountingData.of(data))
    result = run_device(phase, downlink, private, counters[-1], key, repeat=loop_steps)
    numbers: DeviceResult = jax.tree.map(torch.as_tensor, result)
    return numbers


def _finite(stacked: PyTree) -> Tensor:
    """Return a mask of the devices whose numbers are all finite."""
    masks = [
        torch.isfinite(leaf).reshape(len(leaf), -1).all(1).cpu()
        for leaf in jax.tree.leaves(stacked)
    ]
    return torch.stack(masks).all(0) if masks else torch.tensor(True)


def _within_limits(
    phase: Phase,
    received: Upload,
    downlink: Downlink,
    finite: Tensor,
    limits: Limits,
) -> Tensor:
    """Return a mask of the uploads within the limits, by the rule of all engines."""
    allowed = finite.numpy()
    if limits.norm is not None:
        within = acceptable_in(np, to_arrays(received), {}, allowed, limits.norm)
        allowed = np.asarray(within)
    if limits.distance is not None and phase.is_compared:
        ways = torch.func.vmap(phase.deviations, (0, None))(received, downlink)
        lengths = distances(np, to_arrays(ways), allowed)
        reach = reach_of(np, lengths, allowed, limits.distance)
        allowed = allowed & np.all(lengths <= reach[:, None], axis=0)
    return torch.from_numpy(np.array(allowed))


def _mean(stacked: PyTree, shares: Tensor) -> tuple[Any, Any]:
    """Return the weighted mean, and the weighted mean squared distance from it."""

    def along(leaf: Tensor) -> Tensor:
        column = shares.to(leaf.device, leaf.dtype)
        return column.reshape(-1, *[1] * (leaf.ndim - 1))

    def average(leaf: Tensor) -> Tensor:
        wide = leaf.to(torch.promote_types(leaf.dtype, torch.float32))
        weights = along(wide)
        # An upload that does not count may not be finite.
        return torch.where(weights > 0, weights * wide, 0).sum(0)

    mean = jax.tree.map(average, stacked)
    spread = jax.tree.map(
        lambda leaf, middle: average((leaf.to(middle.dtype) - middle) ** 2).sum(),
        stacked,
        mean,
    )
    return mean, spread


def _in_dtype_of(new: Any, old: Any) -> Any:
    return (
        new.to(old.dtype)
        if isinstance(old, Tensor) and isinstance(new, Tensor)
        else new
    )


def _bytes(values: PyTree) -> int:
    return sum(
        leaf.nbytes if isinstance(leaf, Tensor) else 4
        for leaf in jax.tree.leaves(values)
    )
