"""Running an algorithm: an iterator of rounds, the same for every engine."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase, Private, Server
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import one_device
from fedbilevel.engines.accounting import Costs, device_costs
from fedbilevel.engines.checks import check_problem, check_weights
from fedbilevel.engines.participation import Everyone, Participation
from fedbilevel.engines.protocol import (
    Engine,
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class Round(NamedTuple):
    """A finished round.

    Attributes:
        number: counted from 0.
        server: the server's state after it.
        reports: what each of its exchanges told.
        costs: all that has been spent since the run began.

    Example:
        >>> from fedbilevel import Costs
        >>> from fedbilevel.algorithms.momentum import initial_state
        >>> import jax.numpy as jnp
        >>> Round(0, initial_state(jnp.ones(1), jnp.ones(2)), (), Costs()).y
        Array([1., 1.], dtype=float32)
    """

    number: int
    server: Server
    reports: tuple[Report, ...]
    costs: Costs

    @property
    def participants(self) -> Int[np.ndarray, "contributors"]:
        """The devices whose uploads counted in the round's last exchange."""
        return self.reports[-1].contributors

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return self.server.x

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return self.server.y


def run(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation = Everyone(),
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
) -> Iterator[Round]:
    """Run an algorithm and yield each round as it is done.

    Args:
        problem: the two losses.
        algorithm: what devices and server do in a round.
        devices: the data.
        x: where the upper variable starts.
        y: where the lower variable starts.
        rounds: how many rounds to run.
        seed: of every random choice; the same seed gives the same bits.
        participation: who takes part in a round.
        weights: of the devices in every mean, in any unit; all alike by default, as in
            the paper. A device of weight zero is absent.
        engine: where the devices' work is done.

    Returns:
        An iterator of rounds.

    Raises:
        ValueError: if the arguments do not fit together.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, InMemoryDevices, LocalBSGM, LocalExamples,
        ...     NeumannSeries, run,
        ... )
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = LocalBSGM(
        ...     learning_rate=0.1,
        ...     upper_mixing=10.0,
        ...     lower_mixing=10.0,
        ...     hypergradient=NeumannSeries(terms=10, scale=0.4),
        ...     local_steps=5,
        ... )
        >>> *_, last = run(problem, algorithm, devices, 3.0, 0.0, rounds=40)
        >>> round(float(last.x), 3)  # Φ(x) = (x − 1)²
        1.0
    """
    if rounds < 1:
        raise ValueError(f"run needs at least 1 round, but rounds={rounds}.")
    if isinstance(algorithm, type):
        raise TypeError(
            f"run was given the class {algorithm.__name__}; give it an algorithm, with "
            "its hyperparameters: that class called with them."
        )
    x, y = _canonical(x), _canonical(y)
    everyone = check_weights(weights, devices.device_count)
    one = one_device(devices.cohort(np.array([0])))
    check_problem(problem, x, y, one)
    server, private = algorithm.init(problem, x, y)
    server, private = _canonical(server), _canonical(private)
    key = jax.random.key(seed)
    opening = _references(True, algorithm.opening(problem))
    phases = _references(False, algorithm.phases(problem))
    costs = {
        reference: device_costs(
            reference.of(algorithm, problem), server, private, one, key
        )
        for reference in dict.fromkeys((*opening, *phases))
    }
    usual = len(participation(seed, 0, devices.device_count))
    loaded = devices.loaded_bytes
    job = Job(problem, algorithm, devices, key, opening, phases, usual, loaded, costs)
    state = RunState(server, _replicate(private, devices.device_count))
    return _rounds(job, state, rounds, seed, participation, everyone, engine)


def _rounds(
    job: Job,
    state: RunState,
    rounds: int,
    seed: int,
    participation: Participation,
    weights: Float[np.ndarray, "devices"],
    engine: Engine,
) -> Iterator[Round]:
    spent = Costs()
    for number in range(rounds):
        chosen = np.asarray(participation(seed, number, job.devices.device_count))
        participants = _participants(number, chosen, weights)
        reports = []
        for exchange, reference in enumerate(job.phases if number else job.opening):
            state, report = engine.exchange(
                job, reference, Moment(number, exchange), state, participants
            )
            reports.append(report)
            costs = job.costs[reference].times(len(report.contributors))
            spent = spent.plus(costs)
        yield Round(number, state.server, tuple(reports), spent)


def _participants(
    number: int,
    chosen: Int[np.ndarray, "chosen"],
    weights: Float[np.ndarray, "devices"],
) -> Participants:
    wrong = chosen[(chosen < 0) | (chosen >= len(weights))]
    if len(wrong):
        raise ValueError(
            f"device {wrong[0]} was chosen for round {number}, but devices are "
            f"numbered 0 to {len(weights) - 1}."
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError(
            f"a device was chosen twice for round {number}; let participation return "
            "each device at most once."
        )
    total = weights[chosen].sum()
    if not total:
        raise ValueError(
            f"no device with a weight above zero takes part in round {number}; choose "
            "more devices a round or give more of them a weight."
        )
    return Participants(chosen, weights[chosen] / total)


def _references(opening: bool, phases: tuple[Phase, ...]) -> tuple[PhaseReference, ...]:
    # A phase that is repeated refers to its first place, and so is compiled once.
    return tuple(PhaseReference(opening, phases.index(phase)) for phase in phases)


def _canonical(state: PyTree) -> PyTree:
    # A weakly typed leaf would come back strongly typed and compile everything again.
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.result_type(leaf)), state)


def _replicate(private: Private, device_count: int) -> Private:
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (device_count, *leaf.shape)), private
    )
