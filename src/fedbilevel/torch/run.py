"""Run an algorithm on a problem of PyTorch."""

from collections.abc import Generator
from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.engines.checkpoints.options import Progress
from fedbilevel.engines.checks import check_rounds, check_weights
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.iteration import iterate
from fedbilevel.engines.limits import NO_LIMITS
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.phase_checks import check_algorithm, check_first_state
from fedbilevel.engines.preparation import Prepared, RunSpec, references
from fedbilevel.engines.protocol import Job, RunState
from fedbilevel.engines.round import Round
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.torch.devices import TensorDevices
from fedbilevel.torch.simulation import TensorSimulation


def run(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: TensorDevices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation = FullParticipation(),
    weights: ArrayLike | None = None,
    engine: TensorSimulation = TensorSimulation(),
) -> Generator[Round, None, None]:
    """Run an algorithm on a problem of PyTorch, and yield each finished round.

    Args:
        problem: problem of `bilevel_problem`.
        algorithm: algorithm with its hyperparameters.
        devices: data of all devices.
        x: initial upper variable, a tree of tensors.
        y: initial lower variable, a tree of tensors.
        rounds: number of rounds.
        seed: seed of every random choice of the run.
        participation: function that selects the devices of each round.
        weights: weights of the devices in every mean; equal by default.
        engine: engine that executes the devices' work.

    Example:
        >>> from fedbilevel import FedBiO, LocalExamples
        >>> from fedbilevel.torch import bilevel_problem
        >>> problem = bilevel_problem(
        ...     upper_loss=lambda x, y, batch: torch.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: torch.mean((y - x * batch) ** 2),
        ... )
        >>> ones = torch.ones(4)
        >>> devices = TensorDevices([LocalExamples(upper=ones, lower=ones)] * 4)
        >>> start = torch.tensor(3.0), torch.tensor(0.0)
        >>> *_, last = run(problem, FedBiO(0.1), devices, *start, rounds=100)
        >>> abs(float(last.x) - 1) < 0.1  # Φ(x) = (x − 1)²
        True
    """
    check_algorithm(algorithm)
    check_rounds(rounds)
    x, y = (
        jax.tree.map(lambda leaf: torch.as_tensor(leaf).detach(), v) for v in (x, y)
    )
    first = algorithm.init(problem, x, y)
    check_first_state(algorithm, first)
    server, private = jax.tree.map(torch.as_tensor, first)
    every, opens = algorithm.phases(problem), algorithm.opening(problem)
    phases = references(False, every)
    spec: Any = RunSpec(
        problem,
        algorithm,
        devices,  # type: ignore[arg-type]
        x,
        y,
        rounds,
        seed,
        participation,
        weights,
        engine,
    )
    key: Any = HostKey.of(seed)
    job = Job(
        problem=problem,
        algorithm=algorithm,
        devices=devices,  # type: ignore[arg-type]
        form=devices.cohort(np.array(0)),  # type: ignore[arg-type]
        key=key,
        opening=references(True, opens) or phases,
        phases=phases,
        cohort_size=len(participation(seed, 0, devices.device_count)),
        loaded_bytes=0,
        limits=NO_LIMITS,
        # The engine counts the costs of a phase in its first exchange.
        costs={},
    )
    state = RunState(server, engine.private_states(private, devices.device_count))
    enrolled = check_weights(weights, devices.device_count)
    prepared = Prepared(spec, job, state, enrolled)
    return iterate(prepared, Progress(0, state, Costs(), ()), None, every=1)
