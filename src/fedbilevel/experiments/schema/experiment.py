"""All that an experiment file can ask for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.server_optimiser import with_server_optimiser
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.schema.auto import Auto
from fedbilevel.experiments.schema.data import Data, Partition
from fedbilevel.experiments.schema.engines import EngineChoice
from fedbilevel.experiments.schema.federation import FederationSettings
from fedbilevel.experiments.schema.outputs import (
    CheckpointSettings,
    Evaluation,
    Tracking,
)
from fedbilevel.experiments.schema.problems import CustomProblem, ProblemChoice
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.settings import (
    Count,
    Positive,
    Seed,
    SettingError,
    check_ranges,
)
from fedbilevel.problems.ready_made import WithBundledData
from fedbilevel.problems.regularisation import Regularisation

AlgorithmChoice: TypeAlias = Auto | FederatedAlgorithm
"""What a file can name: any algorithm of `registry.list_types`, or one by its place."""


@dataclass(frozen=True)
class Experiment:
    """All that a run is asked to do.

    Attributes:
        algorithm: what devices and server do.
        problem: what is learnt.
        data: from which examples.
        partition: held by whom.
        engine: where devices' work is done.
        server_optimiser: moves the upper variable on the server; by default it becomes
            the mean of what devices send.
        rounds: how many.
        seed: of every random choice of the run.
        participants: devices that take part in a round; all by default.
        weight_by_size: whether a device counts by the number of its training examples;
            all count alike by default, as in the paper.
        size_limit: the most examples that a device counts for where it counts by
            them; a federation asks for it, as sites claim how many they hold.
        norm_limit: the largest Euclidean norm of an upload that counts.
        distance_limit: how many times as far as the median device an upload may go
            from what was sent, and count; a federation has 10 if this is left out.
        directory: where everything about the run is kept; by default one named after the
            file.
        federation: how it is carried out across sites, by `fedbilevel federate`.
        evaluation: what is measured.
        checkpoints: how often the run is saved.
        tracking: who else is told of measurements.

    Example:
        >>> from fedbilevel import FedBiO
        >>> Experiment(FedBiO(0.1)).rounds
        100
    """

    algorithm: AlgorithmChoice
    problem: ProblemChoice = field(default_factory=Regularisation)
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    engine: EngineChoice = field(default_factory=Simulation)
    server_optimiser: OptaxOptimiser | None = None
    rounds: Count = 100
    seed: Seed = 0
    participants: Count | None = None
    weight_by_size: bool = False
    size_limit: Count | None = None
    norm_limit: Positive | None = None
    distance_limit: float | None = None
    directory: Path | None = None
    federation: FederationSettings = field(default_factory=FederationSettings)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    tracking: Tracking = field(default_factory=Tracking)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.distance_limit is not None and not self.distance_limit > 1:
            raise SettingError(
                "distance_limit",
                "it says how many times as far as the median device an upload may go; "
                f"give a number above 1, not {self.distance_limit}.",
            )
        if isinstance(self.algorithm, Auto) and self.rounds < 2:
            raise SettingError(
                "rounds",
                "the algorithm is auto, whose first round measures and moves nothing; "
                f"give at least 2, not {self.rounds}.",
            )
        if isinstance(self.algorithm, Auto) and self.server_optimiser is not None:
            raise SettingError(
                "server_optimiser",
                "the algorithm is auto, which has an optimiser of its own; leave this "
                "out, or name another algorithm.",
            )
        for name, default in (("data", Data()), ("partition", Partition())):
            if self.brings_data and getattr(self, name) != default:
                raise SettingError(name, "the problem brings its data; leave this out.")

    @property
    def brings_data(self) -> bool:
        """Whether the problem has its own data and devices."""
        return isinstance(self.problem, CustomProblem | WithBundledData)

    @property
    def limits(self) -> Limits:
        """What uploads are held to."""
        return Limits(self.norm_limit, self.distance_limit)

    @property
    def title(self) -> str:
        """Problem and algorithm; a custom problem is named after its file."""
        problem = self.problem
        name = (
            problem.file.stem
            if isinstance(problem, CustomProblem)
            else type(problem).__name__
        )
        return f"{name} by {self.algorithm_name}"

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name, with that of its server optimiser."""
        name = type(self.inner_algorithm).__name__
        optimiser = self.server_optimiser
        return name if optimiser is None else f"{name} with {optimiser.name}"

    @property
    def inner_algorithm(self) -> Any:
        """The algorithm without its server optimiser."""
        if isinstance(self.algorithm, Auto):
            return self.algorithm.over(self.rounds)
        return self.algorithm

    @property
    def federated_algorithm(self) -> FederatedAlgorithm:
        """The algorithm with its server optimiser, as `run` takes it."""
        if self.server_optimiser is None:
            return cast(FederatedAlgorithm, self.inner_algorithm)
        return with_server_optimiser(self.inner_algorithm, self.server_optimiser)
