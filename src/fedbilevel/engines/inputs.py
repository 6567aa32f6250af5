"""The arguments of the compiled programs of an exchange: traced and static."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase, Server
from fedbilevel.data.examples import RandomKey
from fedbilevel.engines.protocol import Job, Moment, PhaseReference
from fedbilevel.mathematics.problem import BilevelProblem


class Inputs(NamedTuple):
    """The inputs of an exchange that all of its devices share.

    Attributes:
        algorithm: algorithm with its hyperparameters.
        server: server state before the exchange.
        key: random key of the run.
        moment: round and exchange; from the host as one array, since each argument
            from there takes time.
    """

    algorithm: FederatedAlgorithm
    server: Server
    key: RandomKey
    moment: Moment | Int[Array | np.ndarray, "2"]

    @classmethod
    def of(cls, job: Job, server: Server, moment: Moment) -> "Inputs":
        """Return the inputs of an exchange of a run."""
        return cls(job.algorithm, server, job.key, np.array(moment, np.int32))


class PhaseProgram(NamedTuple):
    """The static arguments of a compiled exchange.

    Attributes:
        problem: the two losses.
        reference: the phase.
    """

    problem: BilevelProblem
    reference: PhaseReference

    def of(self, algorithm: FederatedAlgorithm) -> Phase:
        """Return the phase of an algorithm."""
        return self.reference.of(algorithm, self.problem)
