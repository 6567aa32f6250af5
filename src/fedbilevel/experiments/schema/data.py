"""Settings of the data of an experiment and of their partition over devices."""

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
"""The fields of `Data` that apply only to data sets of the Hugging Face hub."""


@dataclass(frozen=True)
class Data:
    """The data set of an experiment; a custom problem loads its own data.

    Attributes:
        name: name of the data set; "hub" for a data set in the layout of the Hugging
            Face hub (see `path`).
        train_size: number of training examples (lower loss); None for all examples that
            are not used for validation.
        validation_size: number of validation examples (upper loss); None for a fifth of
            all examples.
        label_noise: fraction of training labels replaced by random labels, 0 to 1.
        imbalance: ratio of the largest to the smallest class in the training
            examples, at least 1.
        seed: seed of the order of examples, of label noise and of imbalance.
        path: with name "hub": name of the data set on the hub, or a directory
            (relative to the experiment file, or absolute).
        features: with name "hub": columns used as features; None for the image columns,
            or for the numeric columns if there are no images.
        label: with name "hub": column of class labels; None for "label".
        splits: with name "hub": names of the training and the test split; None for
            "train" and "test".

    Raises:
        ValueError: if name is "hub" without a path, or a field of the hub is set for
            another data set.
    """

    name: Literal["digits", "mnist", "fashion_mnist", "adult", "newsgroups", "hub"] = (
        "digits"
    )
    train_size: Count | None = None
    validation_size: Count | None = None
    label_noise: Annotated[
        float, Range(at_least=0.0, at_most=1.0, kind="a fraction")
    ] = 0.0
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
                'it is missing, but name is "hub"; give the name of a data set on the '
                "Hugging Face hub, or a directory.",
            )
        hub_fields = [name for name in HUB_FIELDS if getattr(self, name) is not None]
        if hub_fields and self.name != "hub":
            raise SettingError(
                hub_fields[0],
                f'this key applies only if name is "hub", but name is "{self.name}"; '
                'remove the key, or set name = "hub".',
            )


@dataclass(frozen=True)
class Partition:
    """The partition of the examples over devices.

    Attributes:
        devices: number of devices; ignored if `natural` is true.
        concentration: concentration of the Dirichlet distribution of each device's
            class proportions, smaller for more heterogeneous devices (requires
            flwr-datasets); None for the same proportions on all devices.
        natural: whether each natural group of the data set is a device; for `adult`
            the groups are occupations.
        seed: seed of the partition.
    """

    devices: Count = 8
    concentration: Positive | None = None
    natural: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.natural and self.concentration is not None:
            raise SettingError(
                "concentration",
                f"natural is true, so concentration = {self.concentration:g} would be "
                "ignored; remove one of the two keys.",
            )
