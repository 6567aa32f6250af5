"""Many runs in one compiled program: what `sweep` and `final_points` share."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.chunk import Chunk, replicate
from fedbilevel.engines.inputs import Inputs
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.participation import Participation
from fedbilevel.engines.preparation import Prepared, canonical, participants_of
from fedbilevel.engines.protocol import Moment, PhaseReference, RunState
from fedbilevel.engines.round_program import RoundProgram, run_round
from fedbilevel.engines.run import Run, prepare_arrays
from fedbilevel.engines.spending import refuse_budget
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class ManyProgram(NamedTuple):
    """The static arguments of a program with many runs.

    Attributes:
        problem: the two losses.
        opening: phases of the first round.
        phases: phases of every later round.
        every_upload: True to set the state to NaN if any upload is excluded; by default
            only if all uploads of an exchange are.
    """

    problem: BilevelProblem
    opening: tuple[PhaseReference, ...]
    phases: tuple[PhaseReference, ...]
    every_upload: bool = False


class OneRun(NamedTuple):
    """A run of a program, or many along the leading axes of some fields.

    Attributes:
        algorithm: algorithm with its hyperparameters.
        key: random key.
        shares: weight of each device in each round, 0 if it is absent.
        start: initial upper and lower variable.
        data: data of all devices.
        limits: limits on uploads.
    """

    algorithm: FederatedAlgorithm
    key: RandomKey
    shares: Float[Array | np.ndarray, "rounds devices"]
    start: tuple[Upper, Lower]
    data: StoredData
    limits: Limits

    def first(self, program: ManyProgram) -> RunState:
        """Return the state after the first round."""
        # init is traced, because the first state may depend on the hyperparameters.
        server, private = canonical(self.algorithm.init(program.problem, *self.start))
        state = RunState(server, replicate(private, self.shares.shape[-1]))
        return self._round(program, program.opening, jnp.asarray(0), state)

    def next(
        self, program: ManyProgram, number: Int[Array, ""], state: RunState
    ) -> RunState:
        """Return the state after a later round."""
        return self._round(program, program.phases, number, state)

    def _round(
        self,
        program: ManyProgram,
        references: tuple[PhaseReference, ...],
        number: Int[Array, ""],
        state: RunState,
    ) -> RunState:
        weights = self.shares[number]
        devices = jnp.arange(len(weights))
        moment = Moment(number, 0)
        state, outputs = run_round(
            Inputs(self.algorithm, state.server, self.key, moment),
            Chunk(state.private, self.data, devices, weights, self.limits),
            RoundProgram(program.problem, references),
        )
        # A run would stop here; this program continues with NaN.
        masks = jnp.stack([output.counted for output in outputs])
        valid = jnp.all(jnp.any(masks, axis=1))
        if program.every_upload:
            valid = jnp.all(masks | (weights == 0)[None])
        server = jax.tree.map(partial(_nan_unless, valid), state.server)
        return RunState(server, state.private)


def axes(algorithm: int | None, seed: int | None) -> Any:
    """Return the axes of `jax.vmap` for runs along settings, seeds or both."""
    return OneRun(algorithm, seed, seed, None, None, None)  # type: ignore[arg-type]


class ManyRuns:
    """Runs that differ in the numbers of their algorithm and in their seeds.

    Args:
        run: run with one of the settings and the largest number of rounds. All its
            devices are in memory at once; its seed is ignored.

    Attributes:
        prepared: the prepared run.
        shares: function from a seed to the weight of each device in each round.
    """

    def __init__(self, run: Run) -> None:
        refuse_budget(run.algorithm)
        self.prepared: Prepared = prepare_arrays(run)
        self._start = canonical((run.x, run.y))
        devices = self.prepared.job.devices
        self._data = devices.cohort(np.arange(devices.device_count))
        self._limits = jax.tree.map(lambda limit: jnp.asarray(limit, float), run.limits)
        self.shares = cache(
            partial(shares_of, run.participation, run.rounds, self.prepared.weights)
        )

    def program(self, every_upload: bool = False) -> ManyProgram:
        """Return the static arguments of the runs' program."""
        job = self.prepared.job
        return ManyProgram(job.problem, job.opening, job.phases, every_upload)

    def stacked(
        self, algorithms: Sequence[FederatedAlgorithm], seeds: Sequence[int]
    ) -> OneRun:
        """Return runs with the settings along one axis, and the seeds along another."""
        return OneRun(
            stack(algorithms),
            jnp.stack([jax.random.key(seed) for seed in seeds]),
            np.stack([self.shares(seed) for seed in seeds]),
            self._start,
            self._data,
            self._limits,
        )


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
    rounds: int,
    enrolled: Float[np.ndarray, "devices"],
    seed: int,
) -> Float[np.ndarray, "rounds devices"]:
    """Return the weight of each device in each round, 0 if it is absent.

    Args:
        participation: function that selects the devices of each round.
        rounds: number of rounds.
        enrolled: weights of all devices.
        seed: seed of the run.

    Example:
        >>> from fedbilevel import FullParticipation
        >>> shares_of(FullParticipation(), 2, np.ones(2), 0)
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    shares = np.zeros((rounds, len(enrolled)))
    for number in range(rounds):
        chosen = np.asarray(participation(seed, number, len(enrolled)))
        participants = participants_of(number, chosen, enrolled)
        shares[number, participants.devices] = participants.weights
    return shares


def _nan_unless(valid: Bool[Array, ""], leaf: Array) -> Array:
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return jnp.where(valid, leaf, jnp.nan)
