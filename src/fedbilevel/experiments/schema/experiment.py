"""The settings of an experiment, as its file gives them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from fedbilevel.algorithms.optional import Conflict, conflict_of
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.server_optimiser import with_server_optimiser
from fedbilevel.algorithms.whole_batches import with_whole_batches
from fedbilevel.algorithms.wrapper import find_layer
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
from fedbilevel.experiments.schema.transforms import KEYS, TransformSettings
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.settings import (
    Count,
    Positive,
    Seed,
    SettingError,
    check_ranges,
)
from fedbilevel.problems.built_in import BundledProblem
from fedbilevel.problems.regularisation import Regularisation
from fedbilevel.terminal import one_line
from fedbilevel.transforms.rules import check_rules
from fedbilevel.transforms.transformed import with_transforms

AlgorithmChoice: TypeAlias = Auto | FederatedAlgorithm
"""An algorithm that a file can select: one of `list_types`, or `module:Class`."""


@dataclass(frozen=True)
class Experiment:
    """The settings of a run; each is a key of the file and an option.

    Attributes:
        algorithm: algorithm of devices and server, or "auto".
        problem: bilevel problem to solve.
        data: data set of the problem.
        partition: partition of the data over devices.
        engine: engine that computes the devices' work.
        server_optimiser: optax optimiser of the upper variable on the server, such as
            {name = "adam", learning_rate = 0.01}; None to set the upper variable to
            the mean of the uploads.
        whole_batches: whether each batch is all examples of the device; the batch size
            then has no effect.
        transforms: limits, privacy, codes and robust means of messages.
        rounds: number of rounds.
        seed: seed of every random choice of the run; a run that reports an ε draws from
            a secret in its place.
        participants: number of devices sampled in each round; None for all devices.
        weight_by_size: whether the weight of a device is the number of its training
            examples; otherwise all weights are equal, as in the paper.
        size_limit: largest weight of a device with `weight_by_size`; None for no limit.
            A federation requires a limit, because sites report their own sizes.
        norm_limit: largest Euclidean norm of an accepted upload; None for no limit in a
            simulation and, without noise and fixed-point numbers, 1e6 in a
            federation.
        distance_limit: largest distance of an accepted upload from the downloaded
            point, as a multiple (above 1) of the median over devices; None for no
            limit in a simulation and, without noise and fixed-point numbers, 10 in a
            federation.
        directory: run directory; None for runs/NAME beside the file NAME.toml.
        federation: federation across sites (`fedbilevel federate`).
        evaluation: metrics and their frequency.
        checkpoints: checkpoints of the run.
        tracking: trackers of metrics.
    """

    algorithm: AlgorithmChoice
    problem: ProblemChoice = field(default_factory=Regularisation)
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    engine: EngineChoice = field(default_factory=Simulation)
    server_optimiser: OptaxOptimiser | None = None
    whole_batches: bool = False
    transforms: TransformSettings = field(default_factory=TransformSettings)
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
                f"give a number above 1, not {self.distance_limit}: it is a multiple "
                "of the median distance over devices.",
            )
        check_rules(self._names, cures=KEYS)
        for name, value, excluded in (
            ("server_optimiser", self.server_optimiser, Conflict.SERVER_OPTIMISER),
            (
                "transforms.example_noise",
                self.transforms.example_noise,
                Conflict.EXAMPLE_NOISE,
            ),
        ):
            conflict = conflict_of(self.inner_algorithm, excluded)
            if value is not None and conflict is not None:
                raise SettingError(name, f"{conflict} Or remove this key.")
        for name, default in (("data", Data()), ("partition", Partition())):
            if self.brings_data and getattr(self, name) != default:
                raise SettingError(
                    name,
                    f"the problem {type(self.problem).__name__} has its own data and "
                    "devices; remove this table.",
                )

    @property
    def _names(self) -> list[tuple[str, str]]:
        used = {
            "norm_limit": self.norm_limit is not None,
            "distance_limit": self.distance_limit is not None,
            "federation.secure_sums": self.federation.secure_sums,
        }
        own = [(key.rpartition(".")[2], key) for key in used if used[key]]
        return own + [
            (place, f"transforms.{key}") for place, key in self.transforms.names
        ]

    @property
    def brings_data(self) -> bool:
        """True if the problem has its own data and devices."""
        return isinstance(self.problem, CustomProblem | BundledProblem)

    @property
    def limits(self) -> Limits:
        """The limits of accepted uploads."""
        return Limits(self.norm_limit, self.distance_limit)

    @property
    def title(self) -> str:
        """The problem (or the file of a custom problem) and the algorithm, by name."""
        problem = self.problem
        name = (
            one_line(problem.file.stem)
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
    def auto(self) -> Auto | None:
        """The settings of the algorithm "auto", if it is selected."""
        return find_layer(self.algorithm, Auto)

    @property
    def inner_algorithm(self) -> Any:
        """The algorithm without wrappers."""
        return self.algorithm if self.auto is None else self.auto.over(self.rounds)

    @property
    def federated_algorithm(self) -> FederatedAlgorithm:
        """The algorithm with server optimiser and transforms, as `run` takes it."""
        algorithm = cast(FederatedAlgorithm, self.inner_algorithm)
        if self.whole_batches:
            algorithm = with_whole_batches(algorithm)
        if self.server_optimiser is not None:
            algorithm = with_server_optimiser(algorithm, self.server_optimiser)
        transforms = self.transforms.all
        return with_transforms(algorithm, *transforms) if transforms else algorithm
