"""A simulation for debugging: uncompiled, one device and one step at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fedbilevel.algorithms.protocol import Aggregation, Downlink, Info, Private, Upload
from fedbilevel.data.examples import one_device
from fedbilevel.data.weights import names_of
from fedbilevel.engines.chunk import replicate
from fedbilevel.engines.device_work import loop_steps, run_device
from fedbilevel.engines.limits import reach_of
from fedbilevel.engines.mean import (
    WeightedMean,
    conclude,
    merge,
    stacked_mean,
)
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
from fedbilevel.engines.screening import acceptable, distances


class DeviceError(RuntimeError):
    """An error in one device's work, with the device, round, phase and step."""


@dataclass(frozen=True)
class DebugSimulation:
    """An engine that runs devices in turn, uncompiled, and locates errors.

    The numbers are those of `Simulation`. An error in a device's work, and any value
    that is not finite, is raised as `DeviceError` with device, round, phase and step.
    Under noise, these errors are not covered by ε: other engines show nothing of them.

    Example:
        >>> from fedbilevel import DebugSimulation
        >>> DebugSimulation()
        DebugSimulation()
    """

    key_is_secret = True
    """Only this program knows the key, from which noise and samples follow."""
    sees_uploads = False
    """No server: one program has all data."""
    noised_means = 0
    """A repeated exchange has the same noise, which spends nothing."""

    def example_device(self, device_count: int) -> int:
        """Return 0: this process has the data of all devices."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the private states of all devices, which all start at `private`."""
        return replicate(private, device_count)

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
        replies: list[_Reply] = []
        counted = np.zeros(len(participants.devices), bool)
        number, exchange = moment
        when = f"round {number}, phase {exchange}"
        with jax.disable_jit():
            downlink = _call(f"{when}, broadcast", phase.broadcast, server)
            names = names_of(job.devices)
            for index, device in enumerate(participants.devices):
                if not participants.weights[index]:
                    continue
                where = f"device {names[device]}, {when}, "
                before = jax.tree.map(lambda leaf, k=device: leaf[k], private)
                key = device_key(job.key, moment, int(device))
                with _located(f"{where}loading"):
                    data = one_device(job.devices.cohort(np.array([device])))
                upload, after, info = run_device(
                    phase,
                    downlink,
                    before,
                    data,
                    key,
                    repeat=loop_steps,
                    call=partial(_call, prefix=where),
                )
                received, infos = jax.tree.map(
                    lambda leaf: jnp.asarray(leaf)[None],
                    (phase.decode_upload(upload, downlink), info),
                )
                (allowed,) = acceptable(received, infos, jnp.array([True]), job.limits)
                counted[index] = allowed
                replies.append(_Reply(index, received, infos, after))
            if phase.is_compared and job.limits.distance is not None:
                ways = [
                    jax.vmap(phase.deviations, in_axes=(0, None))(
                        reply.received, downlink
                    )
                    for reply in replies
                ]
                indices = [reply.row for reply in replies]
                lengths = np.concatenate(
                    [distances(jnp, way, jnp.array([True])) for way in ways], axis=1
                )
                reach = reach_of(np, lengths, counted[indices], job.limits.distance)
                counted[indices] &= np.all(lengths <= reach[:, None], axis=0)
            shares = jnp.asarray(participants.weights * counted)
            for index, _, _, after in replies:
                device = participants.devices[index]
                if counted[index]:
                    private = jax.tree.map(
                        lambda leaf, new, k=device: leaf.at[k].set(new), private, after
                    )
            total = _mean(replies, shares, phase.aggregation, downlink)
            server, dispersion = conclude(
                phase,
                server,
                total,
                server_key(job.key, moment),
                np.max(participants.weights),
            )
        return RunState(server, private), Report(
            participants.devices,
            participants.weights > 0,
            (counted,),
            total.info,
            dispersion,
        )


class _Reply(NamedTuple):
    row: int
    received: Upload
    infos: Info
    private: Private


def _mean(
    replies: list[_Reply],
    shares: Float[Array, "cohort"],
    aggregation: Aggregation,
    downlink: Downlink,
) -> WeightedMean:
    """Return the mean of the replies; a robust mean stores all uploads at once."""
    if aggregation.mean is not None:
        received, infos = jax.tree.map(
            lambda *rows: jnp.concatenate(rows),
            *((reply.received, reply.infos) for reply in replies),
        )
        rows = jnp.array([reply.row for reply in replies])
        return stacked_mean(received, infos, shares[rows], None, aggregation, downlink)
    means = [
        stacked_mean(
            reply.received,
            reply.infos,
            shares[reply.row][None],
            aggregation=aggregation,
        )
        for reply in replies
    ]
    return reduce(merge, means)


def _call(
    name: str, function: Callable[..., Any], *arguments: PyTree, prefix: str = ""
) -> Any:
    with _located(f"{prefix}{name}"):
        return _require_finite(function(*arguments))


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        location = f"{where[0].upper()}{where[1:]}"
        raise DeviceError(f"{location}: {type(error).__name__}: {error}") from error


def _require_finite(result: PyTree) -> PyTree:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        if not jnp.all(jnp.isfinite(leaf)):
            name = jax.tree_util.keystr(path)
            raise FloatingPointError(
                f"{name or 'The result'} is not finite. Look for examples that are "
                "not finite, a division by or logarithm of zero, a learning rate that "
                "is too large, or a NeumannSeries scale above 1 / L_1."
            )
    return result
