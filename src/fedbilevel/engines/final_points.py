"""The last x and y of many runs, from one program for any number of rounds."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.engines.many_runs import ManyProgram, ManyRuns, OneRun, axes
from fedbilevel.engines.run import Run, prepare_arrays
from fedbilevel.mathematics.problem import Lower, Upper
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


def final_points(run: Run, every_upload: bool = False) -> RunToEnd:
    """Return a function that runs settings of an algorithm and returns their last x, y.

    The numbers are those of `run`, and NaN if `run` would have stopped. Unlike in a
    `sweep`, the number of rounds is an argument of the compiled program: the same
    number of runs of another length needs no compilation.

    Args:
        run: run with one of the settings, from which all others differ in numbers
            only, and with the largest number of rounds. All its devices are in memory
            at once; its seed is ignored.
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
        >>> run = Run(problem, slow, devices, 3.0, 0.0, rounds=300)
        >>> run_to_end = final_points(run)
        >>> points = run_to_end([(slow, 0), (fast, 0)], 200)
        >>> bool(abs(points.x[1] - 1) < 1e-4)  # Φ(x) = (x − 1)²
        True
    """
    many = ManyRuns(run)
    program = many.program(every_upload)

    def run_to_end(
        runs: Sequence[tuple[FederatedAlgorithm, int]], rounds: int, /
    ) -> Points:
        if not runs or not 1 <= rounds <= run.rounds:
            raise ValueError(
                f"rounds is {rounds}, and {there_are(len(runs), 'run')}. Pass at least "
                f"1 run, and rounds from 1 to {run.rounds}."
            )
        algorithms, seeds = zip(*runs, strict=True)
        points: Points = _points(
            many.stacked(algorithms, seeds), np.asarray(rounds), program
        )
        return points

    return run_to_end


def bytes_of_run(run: Run) -> tuple[int, int]:
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
        >>> inputs = BilevelProblem(loss, loss), FedBiO(0.1), devices, 3.0, 0.0
        >>> one_more, data = bytes_of_run(Run(*inputs, rounds=1))
        >>> one_more < 4096
        True
    """
    prepared = prepare_arrays(run)
    job, state = prepared.job, prepared.state
    phases = *job.opening, *job.phases
    working = max(job.costs[phase].working_bytes for phase in phases)
    private = sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(state.private))
    count = run.devices.device_count
    return COPIES * count * working + 2 * private, count * job.loaded_bytes


@partial(jax.jit, static_argnames="program")
def _points(runs: OneRun, rounds: Int[Array, ""], program: ManyProgram) -> Points:
    def last_point(run: OneRun) -> Points:
        state = jax.lax.fori_loop(
            jnp.asarray(1), rounds, partial(run.next, program), run.first(program)
        )
        return Points(state.server.x, state.server.y)

    return jax.vmap(last_point, in_axes=(axes(algorithm=0, seed=0),))(runs)
