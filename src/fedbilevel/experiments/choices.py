"""What an experiment file can ask for: one dataclass a table of the file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from fedbilevel.algorithms.fedbio import FedBiO
from fedbilevel.algorithms.fedbio_acc import FedBiOAcc
from fedbilevel.algorithms.fednest import FedNest
from fedbilevel.algorithms.lfednest import LFedNest
from fedbilevel.algorithms.local_bsgm import LocalBSGM
from fedbilevel.algorithms.local_bsgvrm import LocalBSGVRM
from fedbilevel.algorithms.shrofbo import ShroFBO
from fedbilevel.algorithms.simfbo import SimFBO
from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.possible import (
    ImpossibleValueError,
    above_zero,
    at_least,
)


@dataclass(frozen=True)
class Regularisation:
    """Tune a penalty on the weights of each feature of softmax regression.

    Attributes:
        penalty: of every feature at the start.

    Example:
        >>> Regularisation().penalty
        0.01
    """

    penalty: float = 0.01

    def __post_init__(self) -> None:
        above_zero(self, "penalty")


@dataclass(frozen=True)
class Cleaning:
    """Learn how far to trust each training example.

    Attributes:
        ridge: the penalty on the model's weights.

    Example:
        >>> Cleaning().ridge
        0.01
    """

    ridge: float = 0.01

    def __post_init__(self) -> None:
        above_zero(self, "ridge")


@dataclass(frozen=True)
class LossTuning:
    """Tune the training loss class by class, for rare classes.

    Attributes:
        ridge: the penalty on the model's weights.

    Example:
        >>> LossTuning().ridge
        0.01
    """

    ridge: float = 0.01

    def __post_init__(self) -> None:
        above_zero(self, "ridge")


@dataclass(frozen=True)
class Representation:
    """Learn what devices' own classifiers see of an example.

    Attributes:
        units: of each layer.
        ridge: the penalty on the classifiers' weights.

    Example:
        >>> Representation().units
        (64,)
    """

    units: tuple[int, ...] = (64,)
    ridge: float = 0.01

    def __post_init__(self) -> None:
        above_zero(self, "ridge")
        if not self.units or min(self.units) < 1:
            raise ImpossibleValueError(
                "units", "give at least one layer, each of at least 1 unit."
            )


@dataclass(frozen=True)
class Own:
    """A problem of your own: a Python file with a function `task`.

    Attributes:
        file: beside the experiment file, or anywhere by its whole path.

    Example:
        >>> Own(Path("ridge.py")).file.name
        'ridge.py'
    """

    file: Path


ProblemChoice: TypeAlias = Regularisation | Cleaning | LossTuning | Representation | Own
AlgorithmChoice: TypeAlias = (
    LocalBSGM | LocalBSGVRM | FedNest | LFedNest | FedBiO | FedBiOAcc | SimFBO | ShroFBO
)


HUB_FIELDS = ("path", "features", "label", "splits")


@dataclass(frozen=True)
class Data:
    """Which examples there are; a problem of your own brings its own.

    Attributes:
        name: of the data set; "hub" for any in the layout of the Hugging Face hub.
        training: examples of lower losses; all that are left by default.
        validation: examples of upper losses; by default a fifth of all.
        noise: the share of training labels drawn anew at random.
        tail: how many times the most frequent class outnumbers the rarest in training.
        seed: of the order of examples, of noise and tail.
        path: of the hub's set: its name there, or a folder beside the experiment file,
            or anywhere by its whole path.
        features: the hub's columns that are learnt from; by default its images, or else
            its numbers.
        label: the hub's column of classes; "label" by default.
        splits: the hub's parts for training and for test; "train" and "test" by
            default.

    Raises:
        ValueError: if "hub" has no path, or another set has what is the hub's.

    Example:
        >>> Data().name
        'digits'
    """

    name: Literal["digits", "mnist", "fashion_mnist", "adult", "newsgroups", "hub"] = (
        "digits"
    )
    training: int | None = None
    validation: int | None = None
    noise: float = 0.0
    tail: float = 1.0
    seed: int = 0
    path: str | None = None
    features: tuple[str, ...] | None = None
    label: str | None = None
    splits: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        at_least(1, self, "training", "validation", "tail")
        at_least(0, self, "seed")
        if not 0 <= self.noise <= 1:
            raise ImpossibleValueError(
                "noise", f"give a share between 0 and 1, not {self.noise}."
            )
        if self.name == "hub" and self.path is None:
            raise ImpossibleValueError(
                "path", 'data of name "hub" need one: a name on the hub, or a folder.'
            )
        given = [name for name in HUB_FIELDS if getattr(self, name) is not None]
        if given and self.name != "hub":
            raise ImpossibleValueError(
                given[0],
                f'it is for name = "hub" only, but the name is {self.name!r}; leave '
                "out one of the two.",
            )


@dataclass(frozen=True)
class Partition:
    """Who holds which examples.

    Attributes:
        devices: how many there are, unless they are natural.
        concentration: of the Dirichlet distribution by which each device has its own
            mixture of classes; the smaller, the less alike. Alike by default.
        natural: whether each natural group of the data is a device; those of `adult`
            are occupations.
        seed: of the deal.

    Example:
        >>> Partition().devices
        8
    """

    devices: int = 8
    concentration: float | None = None
    natural: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "devices")
        at_least(0, self, "seed")
        above_zero(self, "concentration")
        if self.natural and self.concentration is not None:
            raise ImpossibleValueError(
                "concentration", "natural devices have none; leave out one of the two."
            )


@dataclass(frozen=True)
class AllShards:
    """The sharded engine on all JAX devices.

    Attributes:
        cores: of this machine's CPU to use; none to leave that to JAX.
        chunk_size: devices in a chunk.

    Example:
        >>> AllShards(cores=2).cores
        2
    """

    cores: int | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        at_least(1, self, "cores", "chunk_size")


EngineChoice: TypeAlias = Simulation | AllShards | DebugSimulation


@dataclass(frozen=True)
class Evaluation:
    """What is measured, and how often.

    Attributes:
        every: rounds between two measurements; the last round always has one.
        stationarity: whether to solve for y*(x) and measure the distance from it, which
            takes a while.

    Example:
        >>> Evaluation().every
        1
    """

    every: int = 1
    stationarity: bool = False

    def __post_init__(self) -> None:
        at_least(1, self, "every")


@dataclass(frozen=True)
class Keeping:
    """Checkpoints of a run, in its folder.

    Attributes:
        every: rounds between two.
        keep: how many of the newest stay.

    Example:
        >>> Keeping().every
        10
    """

    every: int = 10
    keep: int = 3

    def __post_init__(self) -> None:
        at_least(1, self, "every", "keep")


@dataclass(frozen=True)
class Tracking:
    """Where measurements go besides `measured.jsonl` in the run's folder.

    Attributes:
        tensorboard: whether to write TensorBoard's files, into the run's folder.
        mlflow: the address of an MLflow tracking server, such as
            http://127.0.0.1:5000.
        wandb: a project of Weights & Biases.

    Example:
        >>> Tracking().tensorboard
        False
    """

    tensorboard: bool = False
    mlflow: str | None = None
    wandb: str | None = None


@dataclass(frozen=True)
class Experiment:
    """All that a run is asked to do.

    Attributes:
        algorithm: what devices and server do.
        problem: what is learnt.
        data: from which examples.
        partition: held by whom.
        engine: where devices' work is done.
        rounds: how many.
        seed: of every random choice of the run.
        participants: devices that take part in a round; all by default.
        norm_limit: the largest upload that counts.
        folder: where everything about the run is kept; by default one named after the
            file.
        evaluation: what is measured.
        checkpoints: how often the run is saved.
        tracking: who else is told of measurements.

    Example:
        >>> Experiment(FedBiO(0.1)).rounds
        100
    """

    algorithm: AlgorithmChoice
    problem: ProblemChoice = field(default_factory=Regularisation)
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    engine: EngineChoice = field(default_factory=Simulation)
    rounds: int = 100
    seed: int = 0
    participants: int | None = None
    norm_limit: float | None = None
    folder: Path | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Keeping = field(default_factory=Keeping)
    tracking: Tracking = field(default_factory=Tracking)

    def __post_init__(self) -> None:
        at_least(1, self, "rounds", "participants")
        above_zero(self, "norm_limit")
