"""The data of an experiment, and who holds them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedbilevel.mathematics.settings import (
    Count,
    Positive,
    Range,
    Seed,
    SettingError,
    check_ranges,
)

HUB_FIELDS = ("path", "features", "label", "splits")
"""The fields of `Data` that are about sets of the Hugging Face hub."""


@dataclass(frozen=True)
class Data:
    """Which examples there are; a problem of your own brings its own.

    Attributes:
        name: of the data set; "hub" for any in the layout of the Hugging Face hub.
        train_size: examples of lower losses; all that are left by default.
        validation_size: examples of upper losses; by default a fifth of all.
        label_noise: the share of training labels drawn anew at random.
        imbalance: how many times the most frequent class outnumbers the rarest in training.
        seed: of the order of examples, of noise and tail.
        path: of the hub's set: its name there, or a directory beside the experiment file,
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
    train_size: Count | None = None
    validation_size: Count | None = None
    label_noise: Annotated[float, Range(at_least=0.0, at_most=1.0, kind="a share")] = (
        0.0
    )
    imbalance: Annotated[float, Range(at_least=1.0)] = 1.0
    seed: Seed = 0
    path: str | None = None
    features: tuple[str, ...] | None = None
    label: str | None = None
    splits: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.name == "hub" and self.path is None:
            raise SettingError(
                "path",
                'data of name "hub" need one: a name on the hub, or a directory.',
            )
        given = [name for name in HUB_FIELDS if getattr(self, name) is not None]
        if given and self.name != "hub":
            raise SettingError(
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

    devices: Count = 8
    concentration: Positive | None = None
    natural: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.natural and self.concentration is not None:
            raise SettingError(
                "concentration", "natural devices have none; leave out one of the two."
            )
