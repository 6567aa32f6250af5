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
from fedbilevel.engines.spending import refuse_budget
from fedbilevel.engines.sweep_round import round_program
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import count_noun, there_are

Measure: TypeAlias = Callable[[Server], PyTree]
"""A function of the server state after a round that returns a tree of arrays."""


class Sweep(NamedTuple):
    """The result of a sweep.

    Attributes:
        measurements: results of `measure`, with leading axes (settings, seeds, rounds).
        costs: costs of a run until each round, one tuple for each seed.
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
    """Run every setting with every seed and measure after each round.

    The numbers are those of `run`. All runs are one compiled program, a scan over
    rounds under a `vmap`. All devices of all runs are in memory at once, including
    absent ones: use it for small problems and many runs.

    Args:
        problem: the two losses.
        algorithms: settings of one algorithm that differ in numbers only, not in
            numbers of steps or batch sizes.
        devices: data of all devices.
        x: initial upper variable.
        y: initial lower variable.
        rounds: number of rounds.
        seeds: seeds of the runs of each setting.
        measure: function of the server state, called in the compiled program; another
            function needs another compilation.
        participation: function that selects the devices of each round.
        weights: weights of the devices in every mean, as for `run`.

    Raises:
        ValueError: if the algorithms differ in more than numbers, or a list is empty.

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
        >>> result = sweep(
        ...     problem, [FedBiO(0.05, 0.2), FedBiO(0.1, 0.2)], devices, 3.0, 0.0,
        ...     rounds=200, seeds=[0], measure=lambda server: server.x,
        ... )
        >>> result.measurements.shape  # Φ(x) = (x − 1)²
        (2, 1, 200)
        >>> bool(abs(result.measurements[1, 0, -1] - 1) < 1e-4)
        True
    """
    if rounds < 1 or not algorithms or not seeds:
        raise ValueError(
            f"rounds is {rounds}, and {there_are(len(algorithms), 'algorithm')} and "
            f"{count_noun(len(seeds), 'seed')}. Pass at least 1 of each to sweep."
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
    for algorithm in algorithms:
        refuse_budget(algorithm)
    prepared = prepare(spec)
    job, enrolled = prepared.job, prepared.weights
    problem = job.problem
    settings = stack(algorithms)
    shares = np.stack(
        [shares_of(participation, seed, rounds, enrolled) for seed in seeds]
    )
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    cohort = devices.cohort(np.arange(devices.device_count))
    start = canonical((x, y))
    measurements = _runs(
        problem, job.opening, job.phases, measure, settings, start, cohort, keys, shares
    )
    return Sweep(measurements, tuple(_costs(job, rows) for rows in shares))


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
    run_round = round_program(problem, cohort, shares.shape[-1])

    def run(
        algorithm: FederatedAlgorithm,
        key: RandomKey,
        shares: Float[Array, "rounds devices"],
    ) -> PyTree:
        def body(state: RunState, row: tuple[Array, Array]) -> tuple[RunState, PyTree]:
            state = run_round(algorithm, phases, state, key, *row)
            return state, measure(state.server)

        # init is traced, because the first state may depend on the hyperparameters.
        server, private = canonical(algorithm.init(problem, *start))
        state = RunState(server, replicate(private, shares.shape[-1]))
        first = run_round(algorithm, opening, state, key, jnp.asarray(0), shares[0])
        numbers = jnp.arange(1, len(shares))
        _, rest = jax.lax.scan(body, first, (numbers, shares[1:]))
        return jax.tree.map(
            lambda head, tail: jnp.concatenate([head[None], tail]),
            jax.tree.map(jnp.asarray, measure(first.server)),
            rest,
        )

    over_seeds = jax.vmap(run, in_axes=(None, 0, 0))
    return jax.vmap(over_seeds, in_axes=(0, None, None))(algorithms, keys, shares)


def stack(algorithms: Sequence[FederatedAlgorithm]) -> FederatedAlgorithm:
    """Return one algorithm whose numbers are arrays with the settings as leading axis.

    Raises:
        ValueError: if the settings differ in more than numbers.

    Example:
        >>> from fedbilevel import FedBiO
        >>> stack([FedBiO(0.1), FedBiO(0.2)]).learning_rate
        Array([0.1, 0.2], dtype=float32)
    """
    structures = {jax.tree.structure(algorithm) for algorithm in algorithms}
    if len(structures) != 1:
        raise ValueError(
            "algorithms of a sweep differ in more than numbers. Run a separate sweep "
            "for each class, number of steps and batch size."
        )
    result: FederatedAlgorithm = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]),
        *algorithms,
    )
    return result


def shares_of(
    participation: Participation,
    seed: int,
    rounds: int,
    enrolled: Float[np.ndarray, "devices"],
) -> Float[np.ndarray, "rounds devices"]:
    """Return the weight of each device in each round, 0 if it is absent.

    Args:
        participation: function that selects the devices of each round.
        seed: seed of the run.
        rounds: number of rounds.
        enrolled: weights of all devices.

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
