"""Simulation for finding mistakes: nothing compiled, one device and step at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Info, Private, Upload
from fedbilevel.data.examples import one_device
from fedbilevel.engines.chunk import replicate
from fedbilevel.engines.device_work import one_by_one, run_device
from fedbilevel.engines.limits import reach_of
from fedbilevel.engines.mean import WeightedMean, conclude, merge, stacked_mean
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
    """A failure in one device's work; the message says where.

    Example:
        >>> str(DeviceError("device 3, round 0, phase 0, step 2: no data"))
        'device 3, round 0, phase 0, step 2: no data'
    """


@dataclass(frozen=True)
class DebugSimulation:
    """Runs every device in turn without compilation, and says where a failure lies.

    The numbers are those of `Simulation`. An error in a device's work, and any value
    that is not finite, is raised as `DeviceError` naming device, round, phase and step.

    Example:
        >>> from fedbilevel import DebugSimulation
        >>> DebugSimulation()
        DebugSimulation()
    """

    def example_device(self, device_count: int) -> int:
        """Return the first: all data are here."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return every device's, alike at first."""
        return replicate(private, device_count)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both as they are."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        phase = reference.of(job.algorithm, job.problem)
        server, private = state
        sent: list[_Sent] = []
        counted = np.zeros(len(participants.devices), bool)
        number, exchange = moment
        when = f"round {number}, phase {exchange}"
        with jax.disable_jit():
            downlink = _called(f"{when}, broadcast", phase.broadcast, server)
            for place, device in enumerate(participants.devices):
                if not participants.weights[place]:
                    continue
                where = f"device {device}, {when}, "
                mine = jax.tree.map(lambda leaf, k=device: leaf[k], private)
                key = device_key(job.key, moment, int(device))
                with _named(f"{where}loading"):
                    data = one_device(job.devices.cohort(np.array([device])))
                upload, kept, info = run_device(
                    phase,
                    downlink,
                    mine,
                    data,
                    key,
                    repeat=one_by_one,
                    call=partial(_called, before=where),
                )
                received, infos = jax.tree.map(
                    lambda leaf: jnp.asarray(leaf)[None],
                    (phase.decode_upload(upload, downlink), info),
                )
                (fine,) = acceptable(received, infos, jnp.array([True]), job.limits)
                counted[place] = fine
                sent.append(_Sent(place, received, infos, kept))
            if phase.is_compared and job.limits.distance is not None:
                ways = [
                    jax.vmap(phase.deviations, in_axes=(0, None))(one.received, downlink)
                    for one in sent
                ]
                fine = counted[[one.place for one in sent]]
                gone = np.concatenate(
                    [distances(jnp, way, jnp.array([True])) for way in ways], axis=1
                )
                reach = reach_of(np, gone, fine, job.limits.distance)
                near = np.all(gone <= reach[:, None], axis=0)
                counted[[one.place for one in sent]] = fine & near
            means: list[WeightedMean] = []
            for place, received, infos, kept in sent:
                device = participants.devices[place]
                if counted[place]:
                    private = jax.tree.map(
                        lambda leaf, new, k=device: leaf.at[k].set(new), private, kept
                    )
                share = jnp.array([participants.weights[place] * counted[place]])
                means.append(stacked_mean(received, infos, share))
            total = reduce(merge, means)
            server, dispersion = conclude(
                phase, server, total, server_key(job.key, moment)
            )
        return RunState(server, private), Report(
            participants.devices,
            participants.weights > 0,
            (counted,),
            total.info,
            dispersion,
        )


class _Sent(NamedTuple):
    place: int
    received: Upload
    infos: Info
    kept: Private


def _called(
    name: str, function: Callable[..., Any], *arguments: PyTree, before: str = ""
) -> Any:
    with _named(f"{before}{name}"):
        return _finite(function(*arguments))


@contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise DeviceError(f"{where}: {type(error).__name__}: {error}") from error


def _finite(result: PyTree) -> PyTree:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        if not jnp.all(jnp.isfinite(leaf)):
            name = jax.tree_util.keystr(path)
            raise FloatingPointError(
                f"{name} is not finite; look for examples that are not finite, a "
                "division or logarithm of zero, a learning rate too large, or a "
                "NeumannSeries scale above 1 / L_1."
            )
    return result
