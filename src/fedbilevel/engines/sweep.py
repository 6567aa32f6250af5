"""Many runs in one compiled program: settings and seeds under one vmap."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Server
from fedbilevel.engines.checks import check_seed
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.many_runs import ManyProgram, ManyRuns, OneRun, axes
from fedbilevel.engines.protocol import Job, RunState
from fedbilevel.engines.run import Run
from fedbilevel.engines.spending import refuse_budget
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
    run: Run,
    algorithms: Sequence[FederatedAlgorithm],
    *,
    seeds: Sequence[int],
    measure: Measure,
) -> Sweep:
    """Run every setting with every seed and measure after each round.

    The numbers are those of a run by `Simulation`. All runs are one compiled program, a
    scan over rounds under a `vmap`. All devices of all runs are in memory at once,
    including absent ones: use it for small problems and many runs.

    Args:
        run: run whose algorithm and seed are replaced, and whose engine is not used.
        algorithms: settings of one algorithm that differ in numbers only, not in
            numbers of steps or batch sizes.
        seeds: seeds of the runs of each setting.
        measure: function of the server state, called in the compiled program; another
            function needs another compilation.

    Raises:
        ValueError: if the algorithms differ in more than numbers, or a list is empty.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, Run, sweep
        ... )
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> slow, fast = FedBiO(0.05, 0.2), FedBiO(0.1, 0.2)
        >>> run = Run(problem, slow, devices, 3.0, 0.0, rounds=200)
        >>> result = sweep(
        ...     run, [slow, fast], seeds=[0], measure=lambda server: server.x
        ... )
        >>> result.measurements.shape  # Φ(x) = (x − 1)²
        (2, 1, 200)
        >>> bool(abs(result.measurements[1, 0, -1] - 1) < 1e-4)
        True
    """
    if run.rounds < 1 or not algorithms or not seeds:
        raise ValueError(
            f"rounds is {run.rounds}, and {there_are(len(algorithms), 'algorithm')} "
            f"and {count_noun(len(seeds), 'seed')}. Pass at least 1 of each to sweep."
        )
    for seed in seeds:
        check_seed(seed)
    for algorithm in algorithms[1:]:
        refuse_budget(algorithm)
    runs = ManyRuns(replace(run, algorithm=algorithms[0], seed=seeds[0]))
    measurements = _measurements(
        runs.stacked(algorithms, seeds), runs.program(), measure
    )
    job = runs.prepared.job
    return Sweep(measurements, tuple(_costs(job, runs.shares(seed)) for seed in seeds))


@partial(jax.jit, static_argnames=("program", "measure"))
def _measurements(runs: OneRun, program: ManyProgram, measure: Measure) -> PyTree:
    def measured(run: OneRun) -> PyTree:
        def body(state: RunState, number: Int[Array, ""]) -> tuple[RunState, PyTree]:
            state = run.next(program, number, state)
            return state, measure(state.server)

        first = run.first(program)
        _, rest = jax.lax.scan(body, first, jnp.arange(1, len(run.shares)))
        return jax.tree.map(
            lambda head, tail: jnp.concatenate([head[None], tail]),
            jax.tree.map(jnp.asarray, measure(first.server)),
            rest,
        )

    over_seeds = jax.vmap(measured, in_axes=(axes(algorithm=None, seed=0),))
    return jax.vmap(over_seeds, in_axes=(axes(algorithm=0, seed=None),))(runs)


def _costs(job: Job, shares: Float[np.ndarray, "rounds devices"]) -> tuple[Costs, ...]:
    spent, costs = Costs(), []
    for number, present in enumerate((shares > 0).sum(axis=1)):
        for reference in job.phases if number else job.opening:
            spent = spent.plus(job.costs[reference].times(int(present)))
        costs.append(spent)
    return tuple(costs)
