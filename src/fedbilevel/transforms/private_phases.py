"""Phases whose devices read their examples by private oracles alone."""

from collections.abc import Callable

import jax

from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.algorithms.wrapper import map_phases
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.private_batches import Place, PrivateData
from fedbilevel.transforms.private_oracles import private_problem

ALGORITHM = 0xA160
"""Number in the keys of an algorithm, from which its noise must not follow."""
PhasesOf = Callable[[BilevelProblem], tuple[Phase, ...]]
"""A function from a problem to the phases of a round."""


def private_phases(
    phases_of: PhasesOf, problem: BilevelProblem, noise: ExampleNoise
) -> tuple[Phase, ...]:
    """Return the phases of an algorithm with privacy by example.

    In `start` and `step` the algorithm gets a problem whose oracles look up the
    examples of a batch, and data that give out batches without examples. So whatever an
    algorithm computes follows from noised answers.

    Example:
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> loss = lambda x, y, batch: y**2
        >>> noise = ExampleNoise(clip=1.0, multiplier=1.0)
        >>> phases = private_phases(
        ...     FedBiO(0.1, local_steps=3).phases, BilevelProblem(loss, loss), noise
        ... )
        >>> [phase.steps for phase in phases]
        [3]
    """
    without_data = phases_of(private_problem(problem, noise, None))
    first = {id(phase): index for index, phase in reversed([*enumerate(without_data)])}
    return map_phases(
        lambda phase: _private_phase(
            phase, first[id(phase)], phases_of, problem, noise
        ),
        without_data,
    )


def _private_phase(
    phase: Phase,
    index: int,
    phases_of: PhasesOf,
    problem: BilevelProblem,
    noise: ExampleNoise,
) -> Phase:
    def over(
        data: DeviceData, place: Place, key: RandomKey
    ) -> tuple[Phase, PrivateData]:
        own = PrivateData(data, place, key)
        return phases_of(private_problem(problem, noise, own))[index], own

    def start(
        downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
    ) -> Carry:
        inner, own = over(data, Place.START, key)
        return inner.start(downlink, private, own, jax.random.fold_in(key, ALGORITHM))

    def step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
        inner, own = over(data, Place.STEP, key)
        return inner.step(carry, own, jax.random.fold_in(key, ALGORITHM))

    def finish(
        carry: Carry, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        upload, private, _ = phase.finish(carry, downlink, key)
        return upload, private, {}

    return phase._replace(start=start, step=step, finish=finish)
