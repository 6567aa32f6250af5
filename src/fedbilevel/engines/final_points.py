"""The last x and y of many runs, from one program for any number of rounds."""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.chunk import replicate
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.preparation import RunSpec, canonical, prepare
from fedbilevel.engines.protocol import PhaseReference, RunState
from fedbilevel.engines.spending import refuse_budget
from fedbilevel.engines.sweep import shares_of, stack
from fedbilevel.engines.sweep_round import round_program
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import there_are

COPIES = 8
"""Estimated number of working states of a device in memory during a compiled step."""


class Points(NamedTuple):
    """The last x and y of several runs.

    Attributes:
        x: upper variables, with the runs along a leading axis.
        y: lower variables, with the runs along a leading axis.

    Example:
        >>> Points(jnp.ones(3), jnp.zeros(3)).of(1)
        (Array(1., dtype=float32), Array(0., dtype=float32))
    """

    x: Upper
    y: Lower

    def of(self, run: int) -> tuple[Upper, Lower]:
        """Return the last x and y of one run."""
        x, y = jax.tree.map(lambda leaf: leaf[run], tuple(self))
        return x, y


@runtime_checkable
class RunToEnd(Protocol):
    """A function that runs settings and returns the last x and y of each run."""

    def __call__(
        self, runs: Sequence[tuple[FederatedAlgorithm, int]], rounds: int, /
    ) -> Points:
        """Return the last point of every run, a pair of a setting and a seed."""


def final_points(spec: RunSpec, every_upload: bool = False) -> RunToEnd:
    """Return a function that runs settings of an algorithm and returns their last x, y.

    The numbers are those of `run`, and NaN if `run` would have stopped. Unlike in a
    `sweep`, the number of rounds is an argument of the compiled program: the same
    number of runs of another length needs no compilation.

    Args:
        spec: specification with one of the settings, from which all others differ in
            numbers only, and with the largest number of rounds. All its devices are in
            memory at once; its seed and engine are ignored.
        every_upload: True to return NaN if any upload was excluded; by default only if
            `run` would have stopped.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> slow, fast = FedBiO(0.05, 0.2), FedBiO(0.1, 0.2)
        >>> spec = RunSpec(problem, slow, devices, 3.0, 0.0, rounds=300)
        >>> run_to_end = final_points(spec)
        >>> points = run_to_end([(slow, 0), (fast, 0)], 200)
        >>> bool(abs(points.x[1] - 1) < 1e-4)  # Φ(x) = (x − 1)²
        True
    """
    refuse_budget(spec.algorithm)
    prepared = prepare(spec)
    job, enrolled = prepared.job, prepared.weights
    start = canonical((spec.x, spec.y))
    cohort = spec.devices.cohort(np.arange(spec.devices.device_count))
    limits = jax.tree.map(lambda limit: jnp.asarray(limit, float), spec.limits)

    @cache
    def shares(seed: int) -> Float[np.ndarray, "rounds devices"]:
        return shares_of(spec.participation, seed, spec.rounds, enrolled)

    def run_to_end(
        runs: Sequence[tuple[FederatedAlgorithm, int]], rounds: int, /
    ) -> Points:
        if not runs or not 1 <= rounds <= spec.rounds:
            raise ValueError(
                f"rounds is {rounds}, and {there_are(len(runs), 'run')}. Pass at least "
                f"1 run, and rounds from 1 to {spec.rounds}."
            )
        algorithms, seeds = zip(*runs, strict=True)
        points: Points = _points(
            job.problem,
            job.opening,
            job.phases,
            every_upload,
            stack(algorithms),
            start,
            cohort,
            jnp.stack([jax.random.key(seed) for seed in seeds]),
            np.stack([shares(seed) for seed in seeds]),
            np.asarray(rounds),
            limits,
        )
        return points

    return run_to_end


def bytes_of_run(spec: RunSpec) -> tuple[int, int]:
    """Return the bytes of one more run of `final_points`, and of the devices' data.

    It is an estimate from shapes: a run holds several copies of the working state of
    all devices.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> run, data = bytes_of_run(
        ...     RunSpec(BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0)
        ... )
        >>> run < 4096
        True
    """
    prepared = prepare(spec)
    job, state = prepared.job, prepared.state
    phases = *job.opening, *job.phases
    working = max(job.costs[phase].working_bytes for phase in phases)
    private = sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(state.private))
    count = spec.devices.device_count
    return COPIES * count * working + 2 * private, count * job.loaded_bytes


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _points(
    problem: BilevelProblem,
    opening: tuple[PhaseReference, ...],
    phases: tuple[PhaseReference, ...],
    every_upload: bool,
    algorithms: FederatedAlgorithm,
    start: tuple[Upper, Lower],
    cohort: StoredData,
    keys: PyTree,
    shares: Float[Array, "runs rounds devices"],
    rounds: Int[Array, ""],
    limits: Limits,
) -> Points:
    count = shares.shape[-1]
    run_round = round_program(problem, cohort, count, limits, every_upload)

    def run(
        algorithm: FederatedAlgorithm,
        key: RandomKey,
        shares: Float[Array, "rounds devices"],
    ) -> Points:
        def body(number: Int[Array, ""], state: RunState) -> RunState:
            return run_round(algorithm, phases, state, key, number, shares[number])

        server, private = canonical(algorithm.init(problem, *start))
        state = RunState(server, replicate(private, count))
        state = run_round(algorithm, opening, state, key, jnp.asarray(0), shares[0])
        state = jax.lax.fori_loop(jnp.asarray(1), rounds, body, state)
        return Points(state.server.x, state.server.y)

    return jax.vmap(run)(algorithms, keys, shares)
