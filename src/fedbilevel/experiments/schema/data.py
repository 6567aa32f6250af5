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

FIELDS = {
    "hub": ("path", "features", "label", "splits"),
    "tabular": ("path", "features", "label"),
}
"""The fields of `Data` that apply only to some data sets, by name of the set."""


@dataclass(frozen=True)
class Data:
    """The data set of an experiment; a custom problem loads its own data.

    Attributes:
        name: name of the data set; "hub" for a data set in the layout of the Hugging
            Face hub, "tabular" for a CSV or Parquet file (see `path`).
        train_size: number of training examples (lower loss); None for all examples that
            are not used for validation.
        validation_size: number of validation examples (upper loss); None for a fifth of
            all examples.
        label_noise: fraction of training labels replaced by random labels, 0 to 1.
        imbalance: ratio of the largest to the smallest class in the training
            examples, at least 1.
        seed: seed of the order of examples, of label noise and of imbalance.
        path: with name "hub": name of the data set on the hub, or a directory; with
            name "tabular": CSV or Parquet file. Directory and file are relative to the
            experiment file, or absolute.
        features: columns used as features, with name "hub" or "tabular"; None, with
            "hub", for the image columns, or for the numeric columns if there are no
            images; with "tabular" for all columns.
        label: column of class labels, with name "hub" or "tabular"; None for "label".
        splits: with name "hub": names of the training and the test split; None for
            "train" and "test".

    Raises:
        ValueError: if name is "hub" or "tabular" without a path, or a field of these
            sets is set for another data set.
    """

    name: Literal[
        "digits",
        "mnist",
        "fashion_mnist",
        "adult",
        "newsgroups",
        "fars",
        "flights",
        "azpro",
        "hsb82",
        "mpls_stops",
        "contraception",
        "covid_testing",
        "hub",
        "tabular",
    ] = "digits"
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
        if self.name == "tabular" and self.path is None:
            raise SettingError(
                "path",
                'it is missing, but name is "tabular"; give the path of a CSV or '
                "Parquet file.",
            )
        for field in FIELDS["hub"]:
            names = [name for name, fields in FIELDS.items() if field in fields]
            if getattr(self, field) is not None and self.name not in names:
                sets = " or ".join(f'"{name}"' for name in names)
                raise SettingError(
                    field,
                    f'this key applies only if name is {sets}, but name is "'
                    f'{self.name}"; remove the key, or change name.',
                )


@dataclass(frozen=True)
class Partition:
    """The partition of the examples over devices.

    Attributes:
        devices: number of devices; ignored with `natural` or `by`.
        concentration: concentration of the Dirichlet distribution of each device's
            class proportions, smaller for more heterogeneous devices (requires
            flwr-datasets); None for the same proportions on all devices.
        natural: whether each natural group of the data set is a device: occupations
            for `adult`, states for `fars`.
        by: column of a data set with name "hub" or "tabular"; each of its values is a
            device, with the value as its name. None for a partition by other keys.
        smallest: smallest number of examples, without those for test, of a device with
            `natural` or `by`. Smaller groups are dropped or merged, with a warning.
        other: name of the device that receives the examples of groups smaller than
            `smallest`; None to drop them.
        seed: seed of the partition.
    """

    devices: Count = 8
    concentration: Positive | None = None
    natural: bool = False
    by: str | None = None
    smallest: Count = 1
    other: str | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.natural and self.by is not None:
            raise SettingError(
                "by",
                f"natural is true, so by = {self.by!r} would be ignored; remove one of "
                "the two keys.",
            )
        if self.has_sites and self.concentration is not None:
            reason = "natural is true" if self.natural else f"by is {self.by!r}"
            raise SettingError(
                "concentration",
                f"{reason}, so concentration = {self.concentration:g} would be "
                "ignored; remove one of the two keys.",
            )
        if self.smallest > 1 and not self.has_sites:
            raise SettingError(
                "smallest",
                "it applies only to the devices of natural or by; set one of them, or "
                "remove the key.",
            )
        if self.other is not None and self.smallest == 1:
            raise SettingError(
                "other",
                "it receives groups with fewer examples than smallest, which is 1; set "
                "smallest as well, or remove the key.",
            )

    @property
    def has_sites(self) -> bool:
        """True if the devices are groups of the data, so `devices` is not used.

        Example:
            >>> Partition(by="state").has_sites
            True
        """
        return self.natural or self.by is not None
