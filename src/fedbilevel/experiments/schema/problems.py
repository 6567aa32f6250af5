"""The problems that an experiment file can name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from fedbilevel.experiments.split_data import SplitData
from fedbilevel.mathematics.settings import Positive, SettingError, check_limits
from fedbilevel.problems.hyper_cleaning import hyper_cleaning
from fedbilevel.problems.hyper_representation import hyper_representation
from fedbilevel.problems.loss_tuning import loss_tuning
from fedbilevel.problems.regularisation import regularisation
from fedbilevel.problems.task import Task


@runtime_checkable
class ReadyMade(Protocol):
    """A problem that takes the examples which a file asks for; its fields are settings.

    It is a dataclass, registered by an entry point of the group `fedbilevel.problems`
    or named by its place.
    """

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data, where it starts and what is measured."""


@dataclass(frozen=True)
class Regularisation:
    """Tune a penalty on the weights of each feature of softmax regression.

    Attributes:
        penalty: of every feature at the start.

    Example:
        >>> Regularisation().penalty
        0.01
    """

    penalty: Positive = 0.01

    def __post_init__(self) -> None:
        check_limits(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return regularisation(data.split, penalty=self.penalty)


@dataclass(frozen=True)
class Cleaning:
    """Learn how far to trust each training example.

    Attributes:
        ridge: the penalty on the model's weights.

    Example:
        >>> Cleaning().ridge
        0.01
    """

    ridge: Positive = 0.01

    def __post_init__(self) -> None:
        check_limits(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return hyper_cleaning(data.split, ridge=self.ridge, wrong=data.wrong)


@dataclass(frozen=True)
class LossTuning:
    """Tune the training loss class by class, for rare classes.

    Attributes:
        ridge: the penalty on the model's weights.

    Example:
        >>> LossTuning().ridge
        0.01
    """

    ridge: Positive = 0.01

    def __post_init__(self) -> None:
        check_limits(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return loss_tuning(data.split, ridge=self.ridge, weights=data.weights)


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
    ridge: Positive = 0.01

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.units or min(self.units) < 1:
            raise SettingError(
                "units", "give at least one layer, each of at least 1 unit."
            )

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return hyper_representation(data.split, units=self.units, ridge=self.ridge)


@dataclass(frozen=True)
class Own:
    """A problem of your own: a Python file with a function `task`.

    In a federation, with `model` and `examples` in its place.

    Attributes:
        file: beside the experiment file, or anywhere by its whole path.
        sha256: of the file, in a job that names a file instead of bringing it; filled
            in by `fedbilevel federate` if `federation.reviewed` is true.

    Example:
        >>> Own(Path("ridge.py")).file.name
        'ridge.py'
    """

    file: Path
    sha256: str | None = None


ProblemChoice: TypeAlias = ReadyMade | Own
"""What a file can name: any problem of `registry.kinds`, or one by its place."""
