"""Many runs in one compiled program: settings and seeds under one vmap."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Server
from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.checks import check_seed
from fedbilevel.engines.chunk import replicate
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.preparation import (
    RunSpec,
    canonical,
    participants_of,
    prepare,
)
from fedbilevel.engines.protocol import Job, PhaseReference, RunState
from fedbilevel.engines.sweep_round import round_program
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper

Measure: TypeAlias = Callable[[Server], PyTree]
"""What to record of the server's state after a round: a tree of arrays."""


class Sweep(NamedTuple):
    """What a sweep recorded.

    Attributes:
        measurements: what `measure` returned, with axes (settings, seeds, rounds) in front.
        costs: all that a run has spent after each round, one tuple a seed.

    Example:
        >>> Sweep(measurements=(), costs=((Costs(exchanges=1),),)).costs[0][0].exchanges
        1
    """

    measurements: PyTree
    costs: tuple[tuple[Costs, ...], ...]


def sweep(
    problem: BilevelProblem,
    algorithms: Sequence[FederatedAlgorithm],
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    seeds: Sequence[int],
    measure: Measure,
    participation: Participation = FullParticipation(),
    weights: ArrayLike | None = None,
) -> Sweep:
    """Run every setting with every seed and record a measure after each round.

    The numbers are those of `run`. All runs are one compiled program, a scan over
    rounds under a `vmap`. All devices of all runs are in memory at once, absent ones
    too: it is made for small problems and many runs.

    Args:
        problem: the two losses.
        algorithms: settings of one algorithm that differ in numbers only, not in counts
            of steps or sizes of batches.
        devices: the data.
        x: where the upper variable starts.
        y: where the lower variable starts.
        rounds: how many rounds to run.
        seeds: one run a seed and setting.
        measure: called in the compiled program; another function is another program.
        participation: who takes part in a round.
        weights: of the devices in every mean, as for `run`.

    Raises:
        ValueError: if the algorithms differ in more than numbers, or there is nothing
            to run.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, sweep
        ... )
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> done = sweep(
        ...     problem, [FedBiO(0.05, 0.2), FedBiO(0.1, 0.2)], devices, 3.0, 0.0,
        ...     rounds=200, seeds=[0], measure=lambda server: server.x,
        ... )
        >>> done.measurements.shape  # Φ(x) = (x − 1)²
        (2, 1, 200)
        >>> bool(abs(done.measurements[1, 0, -1] - 1) < 1e-4)
        True
    """
    if rounds < 1 or not algorithms or not seeds:
        raise ValueError(
            f"a sweep needs at least 1 round, 1 setting and 1 seed, but was given "
            f"rounds={rounds}, {len(algorithms)} settings and {len(seeds)} seeds."
        )
    for seed in seeds:
        check_seed(seed)
    spec = RunSpec(
        problem,
        algorithms[0],
        devices,
        x,
        y,
        rounds,
        seeds[0],
        participation,
        weights,
    )
    _, job, _, enrolled = prepare(spec)
    settings = stacked(algorithms)
    shares = np.stack(
        [shares_of(participation, seed, rounds, enrolled) for seed in seeds]
    )
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    cohort = devices.cohort(np.arange(devices.device_count))
    start = canonical((x, y))
    measurements = _runs(
        problem, job.opening, job.phases, measure, settings, start, cohort, keys, shares
    )
    return Sweep(measurements, tuple(_costs(job, own) for own in shares))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _runs(
    problem: BilevelProblem,
    opening: tuple[PhaseReference, ...],
    phases: tuple[PhaseReference, ...],
    measure: Measure,
    algorithms: FederatedAlgorithm,
    start: tuple[Upper, Lower],
    cohort: StoredData,
    keys: PyTree,
    shares: Float[Array, "seeds rounds devices"],
) -> PyTree:
    one_round = round_program(problem, cohort, shares.shape[-1])

    def one_run(
        algorithm: FederatedAlgorithm,
        key: RandomKey,
        shares: Float[Array, "rounds devices"],
    ) -> PyTree:
        def later(state: RunState, now: tuple[Array, Array]) -> tuple[RunState, PyTree]:
            state = one_round(algorithm, phases, state, key, *now)
            return state, measure(state.server)

        # Inside, because an algorithm's first state may depend on its numbers.
        server, private = canonical(algorithm.init(problem, *start))
        state = RunState(server, replicate(private, shares.shape[-1]))
        first = one_round(algorithm, opening, state, key, jnp.asarray(0), shares[0])
        numbers = jnp.arange(1, len(shares))
        _, rest = jax.lax.scan(later, first, (numbers, shares[1:]))
        return jax.tree.map(
            lambda one, more: jnp.concatenate([one[None], more]),
            jax.tree.map(jnp.asarray, measure(first.server)),
            rest,
        )

    over_seeds = jax.vmap(one_run, in_axes=(None, 0, 0))
    return jax.vmap(over_seeds, in_axes=(0, None, None))(algorithms, keys, shares)


def stacked(algorithms: Sequence[FederatedAlgorithm]) -> FederatedAlgorithm:
    """Return settings as one, whose numbers are arrays with a leading axis.

    Raises:
        ValueError: if they differ in more than numbers.

    Example:
        >>> from fedbilevel import FedBiO
        >>> stacked([FedBiO(0.1), FedBiO(0.2)]).learning_rate
        Array([0.1, 0.2], dtype=float32)
    """
    structures = {jax.tree.structure(algorithm) for algorithm in algorithms}
    if len(structures) != 1:
        raise ValueError(
            "a sweep needs settings of one algorithm that differ in numbers only; "
            "sweep those of different counts, sizes or classes one after another."
        )
    together: FederatedAlgorithm = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]),
        *algorithms,
    )
    return together


def shares_of(
    participation: Participation,
    seed: int,
    rounds: int,
    enrolled: Float[np.ndarray, "devices"],
) -> Float[np.ndarray, "rounds devices"]:
    """Return the weight of each device in each round, 0 where it is absent.

    Args:
        participation: the choice of devices of each round.
        seed: of the run.
        rounds: how many there are.
        enrolled: the weights of all devices.

    Example:
        >>> shares_of(FullParticipation(), 0, 2, np.ones(2))
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    shares = np.zeros((rounds, len(enrolled)))
    for number in range(rounds):
        chosen = np.asarray(participation(seed, number, len(enrolled)))
        participants = participants_of(number, chosen, enrolled)
        shares[number, participants.devices] = participants.weights
    return shares


def _costs(job: Job, shares: Float[np.ndarray, "rounds devices"]) -> tuple[Costs, ...]:
    spent, costs = Costs(), []
    for number, present in enumerate((shares > 0).sum(axis=1)):
        for reference in job.phases if number else job.opening:
            spent = spent.plus(job.costs[reference].times(int(present)))
        costs.append(spent)
    return tuple(costs)
