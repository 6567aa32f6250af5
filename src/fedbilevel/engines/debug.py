"""Simulation for finding mistakes: nothing compiled, one device and step at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Info, Phase, Private, Server, Uplink
from fedbilevel.data.examples import DeviceData, RandomKey, one_device
from fedbilevel.engines.chunk import replicate
from fedbilevel.engines.mean import WeightedMean, conclude, merge, stacked_mean
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
    device_key,
)
from fedbilevel.engines.screening import acceptable


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
        means: list[WeightedMean] = []
        counted = np.zeros(len(participants.devices), bool)
        with jax.disable_jit():
            for place, device in enumerate(participants.devices):
                weight = participants.weights[place]
                if not weight:
                    continue
                number, exchange = moment
                where = f"device {device}, round {number}, phase {exchange}"
                mine = jax.tree.map(lambda leaf, k=device: leaf[k], private)
                key = device_key(job.key, moment, int(device))
                with _named(f"{where}, loading"):
                    data = one_device(job.devices.cohort(np.array([device])))
                uplink, kept, info = _work(phase, server, mine, data, key, where)
                received, infos = jax.tree.map(
                    lambda leaf: jnp.asarray(leaf)[None], (phase.receive(uplink), info)
                )
                (fine,) = acceptable(received, infos, jnp.array([True]), job.norm_limit)
                counted[place] = fine
                if fine:
                    private = jax.tree.map(
                        lambda leaf, new, k=device: leaf.at[k].set(new), private, kept
                    )
                share = jnp.array([weight * counted[place]])
                means.append(stacked_mean(received, infos, share))
            total = reduce(merge, means)
            server, dispersion = conclude(phase, server, total)
        return RunState(server, private), Report(
            participants.devices,
            participants.weights > 0,
            (counted,),
            total.info,
            dispersion,
        )


def _work(
    phase: Phase,
    server: Server,
    private: Private,
    data: DeviceData,
    key: RandomKey,
    where: str,
) -> tuple[Uplink, Private, Info]:
    def call(function: Callable[..., PyTree], *arguments: PyTree, step: str) -> PyTree:
        with _named(f"{where}, {step}"):
            return _finite(function(*arguments))

    fold = jax.random.fold_in
    downlink = call(phase.broadcast, server, step="broadcast")
    carry = call(phase.start, downlink, private, data, fold(key, 0), step="start")
    for number in range(phase.steps):
        carry = call(
            phase.step, carry, data, fold(key, number + 1), step=f"step {number}"
        )
    last = fold(key, phase.steps + 1)
    result: tuple[Uplink, Private, Info] = call(
        phase.finish, carry, downlink, last, step="finish"
    )
    return result


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
